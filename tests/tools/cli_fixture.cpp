#include "cli_fixture.hpp"

#include <nlohmann/json.hpp>

namespace switchyard::testing_support {

nlohmann::json read_json(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  ADD_FAILURE() << "not JSON: " << text;
  return nullptr;
}

}  // namespace switchyard::testing_support
