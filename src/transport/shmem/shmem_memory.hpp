// Symmetric memory of SHMEM, and the wire between its copies.
#pragma once

#include <functional>
#include <vector>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/target/host_wire.hpp"
#include "switchyard/detail/transport/transport.hpp"
#include "wire_thread.hpp"

namespace switchyard {

// What kernels of the emulator put into the queue of the wire thread. A PE has one rank, of the same number.
class ShmemWire final : public emulator::WireEngine {
 public:
  explicit ShmemWire(WireThread& thread) : thread_(thread) {}
  void put(int, int peer, void* dst, const void* src, uint64_t bytes, emulator::Where) override {
    thread_.put(peer, dst, src, bytes);
  }
  void settle(int, emulator::Where) override { thread_.settle(); }
  void signal(int, int peer, uint64_t* cell, uint64_t value, emulator::Where) override {
    thread_.signal(peer, cell, value);
  }

 private:
  WireThread& thread_;
};

class ShmemMemory final : public SymmetricMemory {
 public:
  struct Addresses {
    std::vector<std::byte*> of_pe;               // null: not reached by loads and stores
    std::vector<std::byte*> host_visible_of_pe;  // the same for the host
    DeviceMemory host_visible;                   // CUDA: this PE's, which no other one sees
  };

  // `release` is called when the object goes: SHMEM frees memory at all PEs together, so that comes later.
  ShmemMemory(Addresses addresses, emulator::WireEngine* wire, std::function<void()> release)
      : addresses_(std::move(addresses)), wire_(wire), release_(std::move(release)) {}
  ~ShmemMemory() override { release_(); }
  ShmemMemory(const ShmemMemory&) = delete;
  ShmemMemory& operator=(const ShmemMemory&) = delete;

  std::byte* of_rank(int rank) const override { return addresses_.of_pe[static_cast<size_t>(rank)]; }
  std::byte* host_visible_of_rank(int rank) const override {
    return addresses_.host_visible_of_pe[static_cast<size_t>(rank)];
  }
  emulator::WireEngine* wire_engine() const override { return wire_; }

 private:
  const Addresses addresses_;
  emulator::WireEngine* const wire_;  // host; null on CUDA, where kernels have the words of the wire
  const std::function<void()> release_;
};

}  // namespace switchyard
