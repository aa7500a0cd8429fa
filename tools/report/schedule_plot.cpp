// The charts of `switchyard schedule`: a row per block, time to the right, a colour per head or sequence.
#include <algorithm>
#include <cmath>

#include "svg.hpp"
#include "workload/tile_twin.hpp"

namespace switchyard::tools {
namespace {

// Colours that people with any kind of colour vision tell apart (Okabe and Ito).
constexpr const char* kColors[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                   "#56b4e9", "#d55e00", "#f0e442", "#444444"};
constexpr uint32_t kNumHues = std::size(kColors), kNumColors = 2 * kNumHues;  // each also at half strength
constexpr const char* kIdleColor = "#ececec";
constexpr double kMargin = 24;

// What a chart colours by: heads, unless sequences differ or there is only one head.
struct Coloring {
  explicit Coloring(const AttentionWorkload& workload)
      : by_sequence(workload.is_ragged || workload.num_heads == 1),
        count(by_sequence ? static_cast<uint32_t>(workload.seq_lens.size()) : workload.num_heads) {}
  uint32_t color(const TwinTile& tile) const {
    return (by_sequence ? tile.sequence : tile.head) % kNumColors;
  }
  std::string label(uint32_t color) const {
    std::string text = std::string(by_sequence ? "sequence " : "head ") + std::to_string(color);
    if (color + kNumColors < count) text += ", " + std::to_string(color + kNumColors);
    if (color + 2 * kNumColors < count) text += ", ..";
    return text;
  }

  bool by_sequence;
  uint32_t count;
};

double strength(uint32_t color) { return color < kNumHues ? 1 : 0.5; }

struct Panel {
  double left, top, width, height;
  double end;  // the time at the right edge

  double x(double time) const { return left + time / end * width; }
};

std::string number(double value, const char* format = "%.0f") {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

// Neighbouring tiles of one block that are too narrow to be visible and are drawn as one.
struct Run {
  uint32_t color = 0;
  double left = 0, right = 0;
};

std::string path_of(const Run& run, double top, double height) {
  char path[96];
  std::snprintf(path, sizeof(path), "M%.1f %.1fh%.1fv%.1fH%.1fz", run.left, top, run.right - run.left, height,
                run.left);
  return path;
}

// All tiles of one colour are one path, with thin lines between them if they are wide enough.
void draw_tiles(Svg& svg, const Panel& panel, const TwinResult& result, const Coloring& coloring) {
  const double row = panel.height / static_cast<double>(result.tiles_per_block.size());
  const double gap = row >= 4 ? std::min(1.0, row / 8) : 0;
  double widest = 0;
  for (const TwinTile& tile : result.tiles) widest = std::max(widest, tile.end - tile.begin);
  const double widest_px = widest / panel.end * panel.width;
  const double stroke = std::min(0.6, std::min(widest_px, row) / 12);
  std::string paths[kNumColors];
  std::vector<Run> runs(result.tiles_per_block.size());  // the run of each block that is not drawn yet
  const auto draw = [&](uint32_t block) {
    if (runs[block].right > runs[block].left)
      paths[runs[block].color] += path_of(runs[block], panel.top + block * row + gap / 2, row - gap);
  };
  for (const TwinTile& tile : result.tiles) {
    Run& run = runs[tile.block];
    const double left = panel.x(tile.begin), right = panel.x(tile.end);
    if (run.right > run.left && right - run.left < 0.5) {
      run.right = right;
      continue;
    }
    draw(tile.block);
    run = {coloring.color(tile), left, right};
  }
  for (uint32_t block = 0; block < runs.size(); ++block) draw(block);
  svg.add("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", panel.left, panel.top,
          panel.x(result.makespan) - panel.left, panel.height, kIdleColor);
  for (uint32_t color = 0; color < kNumColors; ++color) {
    if (paths[color].empty()) continue;
    svg.add("<path fill=\"%s\" fill-opacity=\"%g\" stroke=\"#ffffff\" stroke-width=\"%.2f\" d=\"",
            kColors[color % kNumHues], strength(color), stroke);
    svg.raw(paths[color] + "\"/>\n");
  }
}

// Draws ticks below, block numbers to the left, and the earliest time at which the launch could have ended.
void draw_axes(Svg& svg, const Panel& panel, const TwinResult& result, double font_size) {
  const double bottom = panel.top + panel.height;
  const std::string small = "font-size=\"" + number(font_size) + "\"";
  const double step = nice_step(panel.end);
  for (double time = 0; time <= panel.end * 1.0001; time += step) {
    svg.line(panel.x(time), bottom, panel.x(time), bottom + 5, "#555555", 1);
    svg.label(panel.x(time), bottom + 8 + font_size, "middle", number(time, "%g"), small.c_str());
  }
  const size_t num_blocks = result.tiles_per_block.size();
  const double row = panel.height / static_cast<double>(num_blocks);
  const size_t block_step =
      row >= font_size + 2
          ? 1
          : std::max<size_t>(1, static_cast<size_t>(nice_step(static_cast<double>(num_blocks))));
  for (size_t block = 0; block < num_blocks; block += block_step)
    svg.label(panel.left - 8, panel.top + (static_cast<double>(block) + 0.5) * row + font_size * 0.35, "end",
              std::to_string(block), small.c_str());
  svg.line(panel.left, panel.top, panel.left, bottom, "#555555", 1);
  svg.line(panel.left, bottom, panel.left + panel.width, bottom, "#555555", 1);
  svg.line(panel.x(result.bound()), panel.top - 4, panel.x(result.bound()), bottom, "#000000", 1.4,
           "stroke-dasharray=\"5 4\"");
}

double legend_height(const Coloring& coloring) { return 25.0 * (std::min(kNumColors, coloring.count) + 2); }

void draw_legend(Svg& svg, double x, double y, const Coloring& coloring) {
  const auto box = [&](const char* color, double opacity, const std::string& text) {
    svg.add("<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" fill=\"%s\" fill-opacity=\"%g\"/>\n", x,
            y, color, opacity);
    svg.label(x + 24, y + 13, "start", text);
    y += 25;
  };
  for (uint32_t color = 0; color < std::min(kNumColors, coloring.count); ++color)
    box(kColors[color % kNumHues], strength(color), coloring.label(color));
  box(kIdleColor, 1, "idle");
  svg.line(x, y + 8, x + 16, y + 8, "#000000", 1.4, "stroke-dasharray=\"5 4\"");
  svg.label(x + 24, y + 13, "start", "best possible end");
}

std::string summary_of(const TwinResult& result) {
  return "ends at " + number(result.makespan, "%g") + ", efficiency " + number(result.efficiency(), "%.3f");
}

void draw_title(Svg& svg, const AttentionWorkload& workload, const std::string& title) {
  svg.label(kMargin, 36, "start", title, "font-size=\"19\" font-weight=\"bold\"");
  svg.label(kMargin, 60, "start", workload.describe_batch(), "fill=\"#555555\"");
  svg.label(kMargin, 80, "start", workload.describe_tiles(), "fill=\"#555555\"");
}

std::string draw_one(const AttentionWorkload& workload, const TwinResult& result) {
  const double height = std::clamp(result.tiles_per_block.size() * 18.0, 120.0, 660.0);
  const Panel panel{84, 112, 820, height, std::max(result.makespan, 1e-9)};
  Svg svg(1120, panel.top + std::max(height + 70, legend_height(Coloring(workload)) + 20));
  draw_title(svg, workload, result.type_name + ": " + summary_of(result));
  if (result.tiles.empty()) svg.label(panel.left, panel.top + 20, "start", "no tiles");
  if (!result.tiles.empty()) {
    draw_tiles(svg, panel, result, Coloring(workload));
    draw_axes(svg, panel, result, 13);
    draw_legend(svg, panel.left + panel.width + 28, panel.top, Coloring(workload));
  }
  svg.label(panel.left + panel.width / 2, panel.top + height + 48, "middle", "time, in K/V tiles");
  svg.add("<text transform=\"translate(%g %g) rotate(-90)\" text-anchor=\"middle\">block</text>\n",
          kMargin + 6.0, panel.top + height / 2);
  return svg.finish();
}

// Small multiples on one time axis, so that lengths can be compared.
std::string draw_many(const AttentionWorkload& workload, const std::vector<TwinResult>& results) {
  constexpr double kPanelWidth = 330, kPanelHeight = 190, kColumn = 394, kRow = 262, kTop = 132;
  constexpr size_t kNumColumns = 3;
  double end = 1e-9;
  for (const TwinResult& result : results) end = std::max(end, result.makespan);
  const double num_rows = std::ceil(static_cast<double>(results.size()) / kNumColumns);
  const double bottom = kTop + num_rows * kRow;
  Svg svg(kMargin + kNumColumns * kColumn + 190, bottom + 6);  // higher than the longest legend
  draw_title(svg, workload, "Tile schedulers and orders");
  for (size_t i = 0; i < results.size(); ++i) {
    const Panel panel{kMargin + 40 + static_cast<double>(i % kNumColumns) * kColumn,
                      kTop + static_cast<double>(i / kNumColumns) * kRow, kPanelWidth, kPanelHeight, end};
    svg.label(panel.left, panel.top - 10, "start",
              std::string(to_string(results[i].kind)) + ", " + option_name(results[i].schedule) +
                  (results[i].type_name.ends_with("measured") ? ", measured" : ""),
              "font-weight=\"bold\"");
    svg.label(panel.left + panel.width, panel.top - 10, "end", summary_of(results[i]), "font-size=\"12\"");
    if (results[i].tiles.empty()) continue;
    draw_tiles(svg, panel, results[i], Coloring(workload));
    draw_axes(svg, panel, results[i], 11);
  }
  draw_legend(svg, kMargin + kNumColumns * kColumn + 16, kTop, Coloring(workload));
  svg.label(kMargin + 40, bottom - 14, "start", "Down: blocks. To the right: time, in K/V tiles.",
            "fill=\"#555555\"");
  return svg.finish();
}

}  // namespace

std::string to_svg(const AttentionWorkload& workload, const std::vector<TwinResult>& results) {
  return results.size() == 1 ? draw_one(workload, results.front()) : draw_many(workload, results);
}

}  // namespace switchyard::tools
