#include "json_object.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace switchyard::tools {
namespace {

using nlohmann::ordered_json;

std::string dump(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace

JsonObject::JsonObject() : json_(std::make_unique<ordered_json>(ordered_json::object())) {}
JsonObject::~JsonObject() = default;
JsonObject::JsonObject(JsonObject&& other) noexcept = default;
JsonObject& JsonObject::operator=(JsonObject&& other) noexcept = default;

template <typename T>
JsonObject& JsonObject::add(std::string_view key, const T& value) {
  (*json_)[std::string(key)] = value;
  return *this;
}
template JsonObject& JsonObject::add(std::string_view, const bool&);
template JsonObject& JsonObject::add(std::string_view, const int32_t&);
template JsonObject& JsonObject::add(std::string_view, const int64_t&);
template JsonObject& JsonObject::add(std::string_view, const uint32_t&);
template JsonObject& JsonObject::add(std::string_view, const uint64_t&);
template JsonObject& JsonObject::add(std::string_view, const double&);
template JsonObject& JsonObject::add(std::string_view, const std::string&);
template JsonObject& JsonObject::add(std::string_view, const std::string_view&);
template JsonObject& JsonObject::add(std::string_view, const std::vector<int32_t>&);
template JsonObject& JsonObject::add(std::string_view, const std::vector<uint32_t>&);
template JsonObject& JsonObject::add(std::string_view, const std::vector<uint64_t>&);
template JsonObject& JsonObject::add(std::string_view, const std::vector<double>&);

JsonObject& JsonObject::add(std::string_view key, JsonObject object) {
  (*json_)[std::string(key)] = std::move(*object.json_);
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, std::vector<JsonObject> objects) {
  ordered_json& list = (*json_)[std::string(key)] = ordered_json::array();
  for (JsonObject& object : objects) list.push_back(std::move(*object.json_));
  return *this;
}

std::string JsonObject::to_text() const { return dump(*json_, 2) + "\n"; }
std::string JsonObject::to_line() const { return dump(*json_, -1); }

}  // namespace switchyard::tools
