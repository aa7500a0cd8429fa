// Writes a JSON object or array, value by value, and escapes strings. This is enough for flat reports.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::tools {

inline std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// Numbers that JSON does not have (NaN, infinity) become null.
inline std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

template <typename T>
std::string json_array(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

inline std::string json_list(const std::vector<std::string>& objects) {
  std::string text = "[";
  for (const std::string& object : objects) {
    if (text.size() > 1) text += ", ";
    text += object;
  }
  return text + "]";
}

class JsonObject {
 public:
  JsonObject& raw(std::string_view key, const std::string& value) {
    text_ += (text_.empty() ? "\n" : ",\n") + indent_ + json_text(key) + ": " + value;
    return *this;
  }
  JsonObject& text(std::string_view key, std::string_view value) { return raw(key, json_text(value)); }
  JsonObject& boolean(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonObject& number(std::string_view key, double value) { return raw(key, json_number(value)); }
  JsonObject& integer(std::string_view key, int64_t value) { return raw(key, std::to_string(value)); }

  explicit JsonObject(int depth = 1) : indent_(static_cast<size_t>(depth) * 2, ' ') {}
  std::string str() const { return "{" + text_ + "\n" + indent_.substr(2) + "}"; }

 private:
  std::string indent_;
  std::string text_;
};

}  // namespace switchyard::tools
