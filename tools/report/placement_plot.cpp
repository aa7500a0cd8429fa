// The heat map of a placement beside the even one: a column per rank, above it the rank's load, and below a
// cell per expert that it holds.
#include <algorithm>
#include <cmath>

#include "plan_report.hpp"
#include "svg.hpp"

namespace switchyard::tools {
namespace {

constexpr double kLeft = 70, kGridWidth = 900, kTop = 96, kBarHeight = 110, kGap = 44;

struct Scale {
  double largest_seat = 0, largest_rank = 0;
  size_t num_seats = 1;
};

// From white to dark blue, by the root of the share, so that small ones differ; without rows it is grey.
std::string color_of(double share) {
  if (share <= 0) return "#eeeeee";
  const auto channel = [&](double dark) {
    return static_cast<int>(std::lround(247 + (dark - 247) * std::sqrt(share)));
  };
  char text[8];
  std::snprintf(text, sizeof(text), "#%02x%02x%02x", channel(8), channel(48), channel(107));
  return text;
}

std::string rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value >= 1e5 ? "%.3g" : "%.0f", value);
  return text;
}

double cell_height(const Scale& scale) {
  return std::clamp(420.0 / static_cast<double>(scale.num_seats), 4.0, 22.0);
}

void draw_bars(Svg& svg, const PlacementSide& side, const Scale& scale, double top) {
  const double column = kGridWidth / static_cast<double>(side.load_of_rank.size());
  const double bottom = top + kBarHeight;
  for (size_t rank = 0; rank < side.load_of_rank.size(); ++rank) {
    const double height =
        scale.largest_rank > 0 ? side.load_of_rank[rank] / scale.largest_rank * kBarHeight : 0;
    svg.add("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#e69f00\"/>\n",
            kLeft + static_cast<double>(rank) * column + column * 0.1, bottom - height, column * 0.8, height);
  }
  svg.line(kLeft, bottom, kLeft + kGridWidth, bottom, "#666666", 1);
  const double mean = scale.largest_rank > 0 ? side.mean_load() / scale.largest_rank * kBarHeight : 0;
  svg.line(kLeft, bottom - mean, kLeft + kGridWidth, bottom - mean, "#000000", 1.2,
           "stroke-dasharray=\"5 4\"");
  svg.label(kLeft - 8, top + 12, "end", rounded(scale.largest_rank), "font-size=\"12\"");
  svg.label(kLeft - 8, bottom - mean + 4, "end", "mean", "font-size=\"12\"");
}

void draw_cells(Svg& svg, const PlacementSide& side, const Scale& scale, double top) {
  const double column = kGridWidth / static_cast<double>(side.load_of_rank.size()), row = cell_height(scale);
  const bool has_numbers = column >= 30 && row >= 12;
  for (size_t rank = 0; rank < side.load_of_seat.size(); ++rank)
    for (size_t seat = 0; seat < side.load_of_seat[rank].size(); ++seat) {
      const double share = scale.largest_seat > 0 ? side.load_of_seat[rank][seat] / scale.largest_seat : 0;
      const double x = kLeft + static_cast<double>(rank) * column, y = top + static_cast<double>(seat) * row;
      svg.add(
          "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" stroke=\"#ffffff\" "
          "stroke-width=\"0.6\"/>\n",
          x, y, column, row, color_of(share).c_str());
      if (has_numbers)
        svg.label(x + column / 2, y + row / 2 + 4, "middle", std::to_string(side.experts_of_rank[rank][seat]),
                  share > 0.25 ? "font-size=\"11\" fill=\"#ffffff\"" : "font-size=\"11\"");
    }
}

void draw_ranks(Svg& svg, size_t num_ranks, double y) {
  const double column = kGridWidth / static_cast<double>(num_ranks);
  const size_t step = std::max<size_t>(1, static_cast<size_t>(std::ceil(30 / column)));
  for (size_t rank = 0; rank < num_ranks; rank += step)
    svg.label(kLeft + (static_cast<double>(rank) + 0.5) * column, y, "middle", std::to_string(rank),
              "font-size=\"12\"");
}

// Returns where it ends.
double draw_side(Svg& svg, const PlacementSide& side, const Scale& scale, const std::string& name,
                 double top) {
  char text[160];
  std::snprintf(text, sizeof(text), "%s: largest load %.2f times the mean; step %.1f µs", name.c_str(),
                side.mean_load() > 0 ? side.largest_load() / side.mean_load() : 1, side.plan.step_us);
  svg.label(kLeft, top - 12, "start", text, "font-weight=\"bold\"");
  draw_bars(svg, side, scale, top);
  draw_ranks(svg, side.load_of_rank.size(), top + kBarHeight + 16);
  draw_cells(svg, side, scale, top + kBarHeight + 24);
  return top + kBarHeight + 24 + static_cast<double>(scale.num_seats) * cell_height(scale);
}

}  // namespace

std::string placement_svg(const PlacementReport& report) {
  Scale scale;
  for (const PlacementSide* side : {&report.before, &report.after}) {
    scale.largest_rank = std::max(scale.largest_rank, side->largest_load());
    for (const std::vector<double>& seats : side->load_of_seat) {
      scale.num_seats = std::max(scale.num_seats, seats.size());
      for (const double load : seats) scale.largest_seat = std::max(scale.largest_seat, load);
    }
  }
  const double side_height = kBarHeight + 24 + static_cast<double>(scale.num_seats) * cell_height(scale);
  Svg svg(kLeft + kGridWidth + 40, kTop + 2 * (side_height + kGap) + 20);
  svg.label(24, 32, "start", "Experts on ranks, " + report.routing + " routing",
            "font-size=\"19\" font-weight=\"bold\"");
  svg.label(24, 56, "start",
            "A bar is the rows of a rank; a cell below it is an expert, darker with more rows (darkest: " +
                rounded(scale.largest_seat) + ")",
            "fill=\"#555555\"");
  const double end = draw_side(svg, report.before, scale, "Even", kTop);
  draw_side(svg, report.after, scale,
            "Planned with " + std::to_string(report.num_replicas) +
                (report.num_replicas == 1 ? " replica" : " replicas"),
            end + kGap);
  return svg.finish();
}

}  // namespace switchyard::tools
