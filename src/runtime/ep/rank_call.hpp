// A rank is in one call of a step at a time. A second thread is refused before it reads anything.
#pragma once

#include <atomic>
#include <utility>

#include "switchyard/status.hpp"

namespace switchyard {

// A call, from its beginning to the end of this object.
class RankCall {
 public:
  // Is refused while another one is under way, whose name `under_way` then is; null: none.
  RankCall(std::atomic<const char*>& under_way, int rank, const char* call) {
    const char* other = nullptr;
    if (under_way.compare_exchange_strong(other, call, std::memory_order_acquire))
      under_way_ = &under_way;
    else
      status_ = failed_precondition(
          "%s: another thread is in %s of rank %d; calls for one rank must not overlap", call, other, rank);
  }
  explicit RankCall(Status refused) : status_(std::move(refused)) {}
  RankCall(RankCall&& other) noexcept
      : under_way_(std::exchange(other.under_way_, nullptr)), status_(std::move(other.status_)) {}
  RankCall& operator=(RankCall&&) = delete;
  ~RankCall() {
    if (under_way_ != nullptr) under_way_->store(nullptr, std::memory_order_release);
  }

  void refuse(Status why) { status_ = std::move(why); }
  const Status& status() const { return status_; }

 private:
  std::atomic<const char*>* under_way_ = nullptr;  // null: refused
  Status status_;
};

}  // namespace switchyard
