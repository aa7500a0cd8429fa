// Writes a picture as plain SVG, element by element.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace switchyard::tools {

inline std::string escaped_xml(const std::string& text) {
  std::string safe;
  for (const char c : text)
    safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return safe;
}

class Svg {
 public:
  Svg(double width, double height) {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
        "font-family=\"Helvetica, Arial, DejaVu Sans, sans-serif\" font-size=\"14\" fill=\"#222222\">\n",
        width, height, width, height);
    add("<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n", width, height);
  }
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char line[1024];
    std::vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    text_ += line;
  }
  void raw(const std::string& text) { text_ += text; }
  void label(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
    add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, more);
    text_ += escaped_xml(text) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const char* color, double width,
            const char* more = "") {
    add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%g\" %s/>\n", x1,
        y1, x2, y2, color, width, more);
  }
  std::string finish() { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

// A round number that divides the range into about six parts at most.
inline double nice_step(double range) {
  const double decade = std::pow(10, std::floor(std::log10(range)));
  for (const double factor : {0.1, 0.2, 0.5, 1.0})
    if (range / (decade * factor) <= 6) return decade * factor;
  return decade * 2;
}

}  // namespace switchyard::tools
