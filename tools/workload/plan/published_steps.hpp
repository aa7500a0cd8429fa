// Steps whose times are known, to set beside what the model says of them: what this library takes on one GPU,
// and what others have published about links that no machine here has.
#pragma once

#include "cluster_plan.hpp"

namespace switchyard::tools {

struct PublishedStep {
  const char* who;
  std::string setting;
  bool is_measured_here;
  PlanShape shape;
  Cluster cluster;
  // 0: not published.
  double dispatch, combine;
  // What a published GB/s counts: the bytes of tokens (without headers) times the choices, distinct ranks or
  // distinct nodes of each, those on the sender's rank or node included. Microseconds: nothing.
  enum class Unit { kMicroseconds, kGbPerChoice, kGbPerRank, kGbPerNode } unit;
  // Why model and figure differ, where they do by more than a third.
  const char* reason;
};

std::vector<PublishedStep> published_steps();

// The published figures as times, with the plan of the same step.
struct PublishedTimes {
  double dispatch_us, combine_us;
};
PublishedTimes published_times(const PublishedStep& step, const StepPlan& plan);

// Of model and figure; true where there is no figure.
inline constexpr double kCloseFactor = 4.0 / 3;
constexpr bool is_close(double model_us, double published_us) {
  return published_us == 0 ||
         (model_us <= published_us * kCloseFactor && published_us <= model_us * kCloseFactor);
}

// The plan of the step with uniform routing.
Result<StepPlan> plan_published(const PublishedStep& step);

}  // namespace switchyard::tools
