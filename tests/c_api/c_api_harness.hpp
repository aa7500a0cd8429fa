// What the tests of the C functions share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "switchyard/switchyard.h"

namespace switchyard::c_api_test {

inline switchyard_world* make_world(int n_ranks = 1) {
  switchyard_world_options options{};
  options.size = sizeof(options);
  options.target = SWITCHYARD_TARGET_HOST;
  options.n_ranks = n_ranks;
  switchyard_world* world = nullptr;
  EXPECT_EQ(switchyard_world_create(&options, &world), SWITCHYARD_OK) << switchyard_last_error();
  return world;
}

inline switchyard_ep_config small_config() {
  switchyard_ep_config config{};
  config.size = sizeof(config);
  config.n_experts = 4;
  config.top_k = 1;
  config.hidden = 8;
  config.max_tokens_per_rank = 2;
  config.n_sms = 1;
  return config;
}

inline void expect_error(switchyard_status status, switchyard_status code, const char* text) {
  EXPECT_EQ(status, code) << switchyard_status_name(status);
  EXPECT_NE(std::string(switchyard_last_error()).find(text), std::string::npos) << switchyard_last_error();
}

}  // namespace switchyard::c_api_test
