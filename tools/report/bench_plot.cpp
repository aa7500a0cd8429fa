// The plot of `switchyard bench ep`: plain SVG, two panels that share their x axis.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "axis.hpp"
#include "bench_report.hpp"
#include "svg.hpp"

namespace switchyard::tools {
namespace {

constexpr const char* kLimits = "limits, no protocol";
constexpr double kWidth = 980, kHeight = 800;
constexpr double kLeft = 84, kRight = 770, kLegendLeft = 800;
constexpr double kFirstTop = 92, kFirstBottom = 420, kSecondTop = 462, kSecondBottom = 730;

struct Series {
  std::string group;  // of the legend: a protocol and a mode, or limits
  std::string phase;
  std::vector<std::pair<int, const Timing*>> points;  // by tokens per rank
  const char* color;
  bool is_whole_step() const { return phase == kWholeStep; }
};

// Colours that people with any kind of colour vision tell apart (Okabe and Ito), black for the whole step.
const char* color_of(const std::string& phase) {
  if (phase == "dispatch_async") return "#0072b2";
  if (phase == "dispatch_wait") return "#56b4e9";
  if (phase == "combine_async") return "#d55e00";
  if (phase == "combine_wait") return "#e69f00";
  if (phase == "dispatch") return "#009e73";
  if (phase == "combine") return "#cc79a7";
  if (phase == "scatter") return "#777777";
  if (phase == "gather") return "#aaaaaa";
  return "#222222";
}

std::string group_name(Protocol protocol, StepMode mode) {
  return std::string(to_string(protocol)) + ", " + to_string(mode);
}

std::vector<Series> collect(const BenchReport& report) {
  std::vector<Series> all;
  const auto add = [&](const std::string& group, const std::string& phase, int tokens, const Timing& time) {
    auto found = std::find_if(all.begin(), all.end(), [&](const Series& series) {
      return series.group == group && series.phase == phase;
    });
    if (found == all.end()) found = all.insert(all.end(), {group, phase, {}, color_of(phase)});
    found->points.emplace_back(tokens, &time);
  };
  for (const Protocol protocol : {Protocol::kSlotted, Protocol::kDirect})
    for (const StepMode mode : {StepMode::kSplit, StepMode::kFused})
      for (const SizeResult& size : report.sizes)
        for (const PhaseTime& time : size.times)
          if (time.protocol == protocol && time.mode == mode)
            add(group_name(protocol, mode), time.phase, size.tokens_per_rank, time);
  for (const SizeResult& size : report.sizes) {
    if (!size.limits) continue;
    add(kLimits, "scatter", size.tokens_per_rank, size.limits->scatter);
    add(kLimits, "gather", size.tokens_per_rank, size.limits->gather);
  }
  for (Series& series : all) std::sort(series.points.begin(), series.points.end());
  return all;
}

void draw_frame(Svg& svg, const Axis& x, const Axis& y, const std::vector<int>& sizes,
                const std::vector<double>& ticks, const std::string& title) {
  for (const double tick : ticks) {
    svg.line(x.first, y.pixel_of(tick), x.last, y.pixel_of(tick), "#dddddd", 1);
    svg.label(x.first - 10, y.pixel_of(tick) + 5, "end", short_number(tick));
  }
  double last_label = -1e9;
  const bool has_labels = y.first == kSecondBottom;
  for (const int size : sizes) {
    svg.line(x.pixel_of(size), y.first, x.pixel_of(size), y.last, "#eeeeee", 1);
    if (!has_labels || x.pixel_of(size) - last_label < 34) continue;
    last_label = x.pixel_of(size);
    svg.label(last_label, y.first + 22, "middle", std::to_string(size));
  }
  svg.line(x.first, y.first, x.last, y.first, "#666666", 1);
  svg.line(x.first, y.first, x.first, y.last, "#666666", 1);
  svg.label(x.first, y.last - 12, "start", title, "font-weight=\"bold\"");
}

// Split phases are solid, fused ones dashed, limits dotted; the whole step is thicker.
std::string stroke_of(const Series& series) {
  std::string stroke = std::string("stroke=\"") + series.color + "\" stroke-width=\"" +
                       (series.is_whole_step() ? "3.2" : "2") + "\"";
  if (series.group.find(to_string(StepMode::kFused)) != std::string::npos)
    stroke += " stroke-dasharray=\"8 4\"";
  if (series.group.find(to_string(Protocol::kSlotted)) == 0) stroke += " stroke-opacity=\"0.45\"";
  if (series.group == kLimits) stroke += " stroke-dasharray=\"2 3\"";
  return stroke;
}

template <typename Value>
void draw_series(Svg& svg, const Axis& x, const Axis& y, const std::vector<Series>& all, const Value& value) {
  for (const Series& series : all) {
    svg.add("<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", stroke_of(series).c_str());
    for (const auto& [tokens, time] : series.points)
      svg.add("%.1f,%.1f ", x.pixel_of(tokens), y.pixel_of(value(*time)));
    svg.add("\"/>\n");
    for (const auto& [tokens, time] : series.points)
      svg.add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"%s\"/>\n", x.pixel_of(tokens),
              y.pixel_of(value(*time)), series.is_whole_step() ? 4.5 : 3.5, series.color);
  }
}

void draw_legend(Svg& svg, const std::vector<Series>& all) {
  double y = kFirstTop + 4;
  for (size_t i = 0; i < all.size(); ++i, y += 25) {
    if (i == 0 || all[i].group != all[i - 1].group) {
      y += i == 0 ? 0 : 14;
      svg.label(kLegendLeft, y + 5, "start", all[i].group, "font-weight=\"bold\"");
      y += 25;
    }
    svg.add("<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" %s/>\n", kLegendLeft, y, kLegendLeft + 38, y,
            stroke_of(all[i]).c_str());
    svg.add("<circle cx=\"%g\" cy=\"%g\" r=\"3.5\" fill=\"%s\"/>\n", kLegendLeft + 19, y, all[i].color);
    svg.label(kLegendLeft + 48, y + 5, "start", all[i].is_whole_step() ? "whole step" : all[i].phase);
  }
}

}  // namespace

std::string to_svg(const BenchReport& report) {
  const std::vector<Series> all = collect(report);
  const Workload& workload = report.workload;
  Svg svg(kWidth, kHeight);
  svg.label(kLeft - 60, 30, "start",
            "Dispatch and combine, " + std::to_string(workload.n_ranks) + " ranks on " + report.device,
            "font-size=\"19\" font-weight=\"bold\"");
  svg.label(kLeft - 60, 53, "start",
            "hidden " + std::to_string(workload.hidden) + ", top-" + std::to_string(workload.top_k) + ", " +
                std::to_string(workload.n_experts) + " experts, bf16, " + report.routing + " routing, " +
                std::to_string(report.n_sms) + " blocks per rank; graph replay, median of " +
                std::to_string(report.num_replays),
            "fill=\"#555555\"");
  if (all.empty()) {
    svg.label(kWidth / 2, kHeight / 2, "middle", "nothing was measured");
    return svg.finish();
  }

  std::vector<int> sizes;
  double min_us = 1e300, max_us = 0, max_percent = 0;
  for (const Series& series : all)
    for (const auto& [tokens, time] : series.points) {
      sizes.push_back(tokens);
      min_us = std::min(min_us, time->median_us);
      max_us = std::max(max_us, time->median_us);
      max_percent = std::max(max_percent, 100 * report.fraction_of_copy(*time));
    }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const Axis x{sizes.front() / 1.25, sizes.back() * 1.25, kLeft, kRight, true};
  const Axis time_axis{min_us / 1.4, max_us * 1.4, kFirstBottom, kFirstTop, true};
  const double step = nice_step(max_percent);
  const Axis percent_axis{0, std::ceil(max_percent / step * 1.02) * step, kSecondBottom, kSecondTop, false};
  std::vector<double> percent_ticks;
  for (int i = 0; i * step <= percent_axis.high * 1.001; ++i) percent_ticks.push_back(i * step);

  char copy[96];
  std::snprintf(copy, sizeof(copy), "Bandwidth, %% of this machine's copy (%.*f %s)",
                report.target == Target::kCuda ? 2 : 1,
                report.copy.bytes_per_second / (report.target == Target::kCuda ? 1e12 : 1e9),
                report.target == Target::kCuda ? "TB/s" : "GB/s");
  draw_frame(svg, x, time_axis, sizes, log_ticks(time_axis), "Time of all ranks together, µs");
  draw_frame(svg, x, percent_axis, sizes, percent_ticks, copy);
  draw_series(svg, x, time_axis, all, [](const Timing& time) { return time.median_us; });
  draw_series(svg, x, percent_axis, all,
              [&](const Timing& time) { return 100 * report.fraction_of_copy(time); });
  draw_legend(svg, all);
  svg.label((kLeft + kRight) / 2, kSecondBottom + 50, "middle", "tokens per rank");
  return svg.finish();
}

}  // namespace switchyard::tools
