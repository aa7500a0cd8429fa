// The axes of plots.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace switchyard::tools {

// Maps values to positions on the page, linear or logarithmic.
struct Axis {
  double low, high;    // of the values
  double first, last;  // of the page
  bool logarithmic;

  double pixel_of(double value) const {
    const auto scaled = [&](double v) { return logarithmic ? std::log2(v) : v; };
    return first + (scaled(value) - scaled(low)) / (scaled(high) - scaled(low)) * (last - first);
  }
};

inline std::string short_number(double value) {
  char text[32];
  if (value >= 1e6)
    std::snprintf(text, sizeof(text), "%gM", value / 1e6);
  else if (value >= 1e4)
    std::snprintf(text, sizeof(text), "%gk", value / 1e3);
  else
    std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Ticks at 1, 2, 5, 10, .. if few decades are shown, else at decades only.
inline std::vector<double> log_ticks(const Axis& axis) {
  const bool few = std::log10(axis.high / axis.low) <= 3.2;
  std::vector<double> ticks;
  for (double decade = std::pow(10, std::floor(std::log10(axis.low))); decade <= axis.high * 1.001;
       decade *= 10)
    for (const double factor : {1.0, 2.0, 5.0})
      if ((few || factor == 1.0) && decade * factor >= axis.low * 0.999 &&
          decade * factor <= axis.high * 1.001)
        ticks.push_back(decade * factor);
  return ticks;
}

}  // namespace switchyard::tools
