// A JSON object that is being written. The library behind it is known to json_object.cpp only, because its
// header takes seconds to compile.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::tools {

class JsonObject {
 public:
  JsonObject();
  ~JsonObject();
  JsonObject(JsonObject&& other) noexcept;
  JsonObject& operator=(JsonObject&& other) noexcept;

  // One member more, behind those before it: a boolean, a number, a text, or a vector of numbers. Numbers
  // that JSON cannot say (NaN, infinity) become null, bytes that are no UTF-8 the replacement character.
  template <typename T>
  JsonObject& add(std::string_view key, const T& value);
  JsonObject& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  JsonObject& add(std::string_view key, JsonObject object);
  JsonObject& add(std::string_view key, std::vector<JsonObject> objects);

  // A line for each value, and the end of the last line.
  std::string to_text() const;
  // All in one line, without its end.
  std::string to_line() const;

 private:
  std::unique_ptr<nlohmann::ordered_json> json_;
};

}  // namespace switchyard::tools
