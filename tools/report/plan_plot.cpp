// The plot of `switchyard plan` over ranks: three panels that share their x axis.
#include <algorithm>
#include <functional>

#include "axis.hpp"
#include "plan_report.hpp"
#include "svg.hpp"

namespace switchyard::tools {
namespace {

constexpr double kLeft = 84, kRight = 770, kLegendLeft = 800, kWidth = 1000;
constexpr double kTop = 118, kPanelHeight = 230, kPanelStride = 292;

struct Line {
  const char* name;
  const char* color;
  double width;
  std::function<double(const StepPlan&)> value;
};

struct Panel {
  std::string title;
  std::vector<Line> lines;
};

// What each resource takes alone, and their time together.
Panel phase_panel(const std::string& title, PhasePlan StepPlan::*phase) {
  const auto line = [&](const char* name, const char* color, double PhasePlan::*part) {
    return Line{name, color, 2, [=](const StepPlan& plan) { return plan.*phase.*part; }};
  };
  // Drawn first and wide: what binds lies on it.
  const Line together{"together", "#cccccc", 8, [=](const StepPlan& plan) { return (plan.*phase).us(); }};
  return {title,
          {together, line("memory", "#0072b2", &PhasePlan::memory_us),
           line("link", "#009e73", &PhasePlan::link_us), line("NIC", "#d55e00", &PhasePlan::nic_us),
           line("latency", "#cc79a7", &PhasePlan::latency_us)}};
}

std::vector<Panel> panels() {
  return {{"Time, µs",
           {{"dispatch", "#0072b2", 2, [](const StepPlan& plan) { return plan.dispatch.us(); }},
            {"combine", "#e69f00", 2, [](const StepPlan& plan) { return plan.combine.us(); }},
            {"step", "#222222", 3.2, [](const StepPlan& plan) { return plan.step_us; }}}},
          phase_panel("Dispatch: each resource alone, µs", &StepPlan::dispatch),
          phase_panel("Combine: each resource alone, µs", &StepPlan::combine)};
}

// Times below this are not drawn: a resource that is not used takes none.
constexpr double kLeastUs = 0.1;

Axis time_axis(const std::vector<StepPlan>& plans, const Panel& panel, double top) {
  double low = 1e300, high = kLeastUs;
  for (const Line& line : panel.lines)
    for (const StepPlan& plan : plans) {
      const double value = line.value(plan);
      if (value >= kLeastUs) low = std::min(low, value);
      high = std::max(high, value);
    }
  return {std::min(low, high) / 1.3, high * 1.3, top + kPanelHeight, top, true};
}

void draw_frame(Svg& svg, const std::vector<StepPlan>& plans, const Axis& x, const Axis& y,
                const Panel& panel, bool has_labels) {
  for (const double tick : log_ticks(y)) {
    svg.line(x.first, y.pixel_of(tick), x.last, y.pixel_of(tick), "#dddddd", 1);
    svg.label(x.first - 10, y.pixel_of(tick) + 5, "end", short_number(tick));
  }
  double last_label = -1e9;
  for (const StepPlan& plan : plans) {
    const double place = x.pixel_of(plan.cluster.n_ranks);
    svg.line(place, y.first, place, y.last, "#eeeeee", 1);
    if (!has_labels || place - last_label < 34) continue;
    last_label = place;
    svg.label(place, y.first + 22, "middle", std::to_string(plan.cluster.n_ranks));
  }
  svg.line(x.first, y.first, x.last, y.first, "#666666", 1);
  svg.line(x.first, y.first, x.first, y.last, "#666666", 1);
  svg.label(x.first, y.last - 12, "start", panel.title, "font-weight=\"bold\"");
}

void draw_line(Svg& svg, const std::vector<StepPlan>& plans, const Axis& x, const Axis& y, const Line& line) {
  svg.add("<polyline fill=\"none\" stroke-linejoin=\"round\" stroke=\"%s\" stroke-width=\"%g\" points=\"",
          line.color, line.width);
  for (const StepPlan& plan : plans)
    if (line.value(plan) >= kLeastUs)
      svg.add("%.1f,%.1f ", x.pixel_of(plan.cluster.n_ranks), y.pixel_of(line.value(plan)));
  svg.add("\"/>\n");
  for (const StepPlan& plan : plans)
    if (line.value(plan) >= kLeastUs)
      svg.add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x.pixel_of(plan.cluster.n_ranks),
              y.pixel_of(line.value(plan)), line.color);
}

void draw_legend(Svg& svg, const Panel& panel, double y) {
  for (const Line& line : panel.lines) {
    svg.line(kLegendLeft, y, kLegendLeft + 38, y, line.color, line.width);
    svg.add("<circle cx=\"%g\" cy=\"%g\" r=\"3.5\" fill=\"%s\"/>\n", kLegendLeft + 19, y, line.color);
    svg.label(kLegendLeft + 48, y + 5, "start", line.name);
    y += 25;
  }
}

std::string text_of(const char* format, auto... values) {
  char text[200];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

// Automatic may choose one for few ranks and the other for many.
std::string protocols_of(const PlanReport& report) {
  std::string names;
  for (const Protocol protocol : {Protocol::kDirect, Protocol::kSlotted})
    for (const StepPlan& plan : report.plans)
      if (plan.shape.protocol == protocol) {
        names += (names.empty() ? "" : ", ") + std::string(to_string(protocol));
        break;
      }
  return names;
}

void draw_title(Svg& svg, const PlanReport& report) {
  const StepPlan& plan = report.plans.front();
  const PlanShape& shape = plan.shape;
  svg.label(kLeft - 60, 30, "start", "Dispatch and combine over ranks, predicted: " + protocols_of(report),
            "font-size=\"19\" font-weight=\"bold\"");
  svg.label(kLeft - 60, 53, "start",
            text_of("%d tokens per rank, hidden %d, top-%d, %d experts, %s routing; dispatch %s per %s, "
                    "combine %s per %s",
                    shape.max_tokens_per_rank, shape.hidden, shape.top_k, shape.n_experts,
                    report.routing.c_str(), to_string(shape.format), to_string(shape.message),
                    to_string(shape.combine_format), to_string(shape.combine_message)),
            "fill=\"#555555\"");
  svg.label(kLeft - 60, 73, "start",
            text_of("%d ranks per node, link %g GB/s and %g µs, NIC %g GB/s and %g µs",
                    plan.cluster.ranks_per_node, plan.cluster.link_gb_s, plan.cluster.link_latency_us,
                    plan.cluster.nic_gb_s, plan.cluster.nic_latency_us),
            "fill=\"#555555\"");
}

}  // namespace

std::string plan_svg(const PlanReport& report) {
  const std::vector<Panel> all = panels();
  Svg svg(kWidth, kTop + static_cast<double>(all.size()) * kPanelStride + 8);
  draw_title(svg, report);
  const auto ranks_of = [](const StepPlan& plan) { return plan.cluster.n_ranks; };
  const auto [few, many] =
      std::minmax_element(report.plans.begin(), report.plans.end(),
                          [&](const StepPlan& a, const StepPlan& b) { return ranks_of(a) < ranks_of(b); });
  const Axis x{ranks_of(*few) / 1.25, ranks_of(*many) * 1.25, kLeft, kRight, true};
  for (size_t i = 0; i < all.size(); ++i) {
    const double top = kTop + static_cast<double>(i) * kPanelStride;
    const Axis y = time_axis(report.plans, all[i], top);
    draw_frame(svg, report.plans, x, y, all[i], i + 1 == all.size());
    for (const Line& line : all[i].lines) draw_line(svg, report.plans, x, y, line);
    draw_legend(svg, all[i], top + 12);
  }
  svg.label((kLeft + kRight) / 2, kTop + static_cast<double>(all.size()) * kPanelStride - 14, "middle",
            "ranks");
  return svg.finish();
}

}  // namespace switchyard::tools
