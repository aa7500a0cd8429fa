// A strict JSON reader for tests: what it takes is JSON to the letter, with no key twice in an object.
#pragma once

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::testing_support {

struct JsonValue {
  enum class Kind { kNull, kBoolean, kNumber, kText, kArray, kObject };
  Kind kind = Kind::kNull;
  double number = 0;
  std::string text;  // escapes are left as they are
  std::vector<JsonValue> items;
  std::map<std::string, JsonValue> members;

  // Null if there is no such member.
  const JsonValue& operator[](const std::string& key) const {
    static const JsonValue none;
    const auto member = members.find(key);
    return member == members.end() ? none : member->second;
  }
};

class JsonReader {
 public:
  // Nothing if the text is not exactly one JSON value.
  static std::optional<JsonValue> read(std::string_view text) {
    JsonReader reader(text);
    JsonValue value;
    if (!reader.value(value)) return {};
    reader.skip_space();
    if (!reader.rest_.empty()) return {};
    return value;
  }

 private:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  void skip_space() {
    while (!rest_.empty() && std::string_view(" \t\r\n").find(rest_.front()) != std::string_view::npos)
      rest_.remove_prefix(1);
  }
  bool take(std::string_view word) {
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool value(JsonValue& into) {
    skip_space();
    if (rest_.empty()) return false;
    switch (rest_.front()) {
      case '{':
        into.kind = JsonValue::Kind::kObject;
        return list('{', '}', [&] { return member(into); });
      case '[':
        into.kind = JsonValue::Kind::kArray;
        return list('[', ']', [&] { return value(into.items.emplace_back()); });
      case '"':
        into.kind = JsonValue::Kind::kText;
        return string(into.text);
      case 'n':
        return take("null");
      case 't':
      case 'f':
        into.kind = JsonValue::Kind::kBoolean;
        into.number = rest_.front() == 't';
        return take(into.number != 0 ? "true" : "false");
      default:
        into.kind = JsonValue::Kind::kNumber;
        return number(into.number);
    }
  }
  template <typename Item>
  bool list(char open, char close, Item item) {
    take({&open, 1});
    skip_space();
    if (take({&close, 1})) return true;
    for (;;) {
      if (!item()) return false;
      skip_space();
      if (take({&close, 1})) return true;
      if (!take(",")) return false;
    }
  }
  bool member(JsonValue& object) {
    std::string key;
    skip_space();
    if (!string(key)) return false;
    skip_space();
    if (!take(":")) return false;
    const auto [place, is_new] = object.members.emplace(key, JsonValue{});
    return is_new && value(place->second);
  }
  bool string(std::string& into) {
    if (!take("\"")) return false;
    while (!rest_.empty() && rest_.front() != '"') {
      if (static_cast<unsigned char>(rest_.front()) < 0x20) return false;
      const size_t length = rest_.front() != '\\' ? 1 : rest_.substr(1, 1) == "u" ? 6 : 2;
      if (rest_.size() < length) return false;
      const std::string_view part = rest_.substr(0, length);
      if (length == 2 && std::string_view("\"\\/bfnrt").find(part[1]) == std::string_view::npos) return false;
      if (length == 6 && part.find_first_not_of("0123456789abcdefABCDEF", 2) != std::string_view::npos)
        return false;
      into += part;
      rest_.remove_prefix(length);
    }
    return take("\"");
  }
  bool digits() {
    const size_t length = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(length);
    return length > 0;
  }
  bool number(double& into) {
    const char* begin = rest_.data();
    take("-");
    if (!take("0") && !digits()) return false;
    if (take(".") && !digits()) return false;
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      if (!digits()) return false;
    }
    return std::from_chars(begin, rest_.data(), into).ptr == rest_.data();
  }

  std::string_view rest_;
};

}  // namespace switchyard::testing_support
