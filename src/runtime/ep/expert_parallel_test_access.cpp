// What tests and simulations may do to the memory and the calls of an ExpertParallel.
#include "switchyard/detail/testing/expert_parallel_test_access.hpp"

#include "expert_parallel_impl.hpp"

namespace switchyard {

Status ExpertParallelTestAccess::poison_receive_buffers(ExpertParallel& ep, uint8_t value) {
  ExpertParallel::Impl& impl = *ep.impl_;
  for (const int rank : impl.local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(impl.state(rank).memory.overwrite(impl.member(rank), value));
  for (const auto& flight : impl.later_flights)
    SWITCHYARD_RETURN_IF_ERROR(poison_receive_buffers(*flight, value));
  return Status();
}

void ExpertParallelTestAccess::use_memory_of(ExpertParallel& flight, const ExpertParallel& other,
                                             FlightMemory memory) {
  for (const int rank : flight.impl_->local_ranks()) {
    ExpertParallel::Impl::RankState& own = flight.impl_->state(rank);
    const ExpertParallel::Impl::RankState& taken = other.impl_->state(rank);
    switch (memory) {
      case FlightMemory::kDispatchSlots:
        own.dispatch_call.step.recv_bufs = taken.dispatch_call.step.recv_bufs;
        break;
      case FlightMemory::kDispatchCells:
        own.dispatch_call.step.recv_counts = taken.dispatch_call.step.recv_counts;
        break;
      case FlightMemory::kCombineSlots:
        own.combine_call.step.recv_bufs = taken.combine_call.step.recv_bufs;
        break;
      case FlightMemory::kCombineCells:
        own.combine_call.step.recv_counts = taken.combine_call.step.recv_counts;
        break;
    }
  }
}

Status ExpertParallelTestAccess::overwrite_seat_table(ExpertParallel& ep, int rank,
                                                      const std::vector<int32_t>& seats) {
  const ExpertParallel::Impl& impl = *ep.impl_;
  return device_of(impl.member(rank))
      .copy(impl.state(rank).memory.at<void>(impl.layout.seat_table), seats.data(),
            impl.layout.seat_table.bytes, impl.member(rank).stream());
}

}  // namespace switchyard
