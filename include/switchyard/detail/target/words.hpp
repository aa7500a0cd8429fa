// The words that kernels use for memory that several threads share: operation + order + scope. They are built
// once, over the primitives (load, store, fetch_add, compare_exchange) that each target defines. Only the
// targets include this file.
//
// An acquire that reads what a release wrote (directly, or through a chain of read-modify-writes) makes
// everything before the release visible after the acquire. Barriers (sync_block, sync_warp) extend this to
// the threads they join.
#pragma once

namespace switchyard::inline SWITCHYARD_TARGET::target {

template <typename T>
SWITCHYARD_DEVICE T ld_relaxed_device(const T* p SWITCHYARD_WHERE) {
  return load<Order::kRelaxed, Scope::kDevice>(p SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T ld_relaxed_system(const T* p SWITCHYARD_WHERE) {
  return load<Order::kRelaxed, Scope::kSystem>(p SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T ld_acquire_device(const T* p SWITCHYARD_WHERE) {
  return load<Order::kAcquire, Scope::kDevice>(p SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T ld_acquire_system(const T* p SWITCHYARD_WHERE) {
  return load<Order::kAcquire, Scope::kSystem>(p SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE void st_relaxed_device(T* p, T value SWITCHYARD_WHERE) {
  store<Order::kRelaxed, Scope::kDevice>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE void st_relaxed_system(T* p, T value SWITCHYARD_WHERE) {
  store<Order::kRelaxed, Scope::kSystem>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE void st_release_device(T* p, T value SWITCHYARD_WHERE) {
  store<Order::kRelease, Scope::kDevice>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE void st_release_system(T* p, T value SWITCHYARD_WHERE) {
  store<Order::kRelease, Scope::kSystem>(p, value SWITCHYARD_PASS_WHERE);
}
// A release whose scope is known only at run time: device, or system, which costs microseconds more.
template <typename T>
SWITCHYARD_DEVICE void st_release(Scope scope, T* p, T value SWITCHYARD_WHERE) {
  if (scope == Scope::kDevice)
    st_release_device(p, value SWITCHYARD_PASS_WHERE);
  else
    st_release_system(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T atomic_add_relaxed_block(T* p, T value SWITCHYARD_WHERE) {
  return fetch_add<Order::kRelaxed, Scope::kBlock>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T atomic_add_relaxed_device(T* p, T value SWITCHYARD_WHERE) {
  return fetch_add<Order::kRelaxed, Scope::kDevice>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T atomic_add_release_device(T* p, T value SWITCHYARD_WHERE) {
  return fetch_add<Order::kRelease, Scope::kDevice>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T atomic_add_acq_rel_device(T* p, T value SWITCHYARD_WHERE) {
  return fetch_add<Order::kAcqRel, Scope::kDevice>(p, value SWITCHYARD_PASS_WHERE);
}
template <typename T>
SWITCHYARD_DEVICE T atomic_add_release_system(T* p, T value SWITCHYARD_WHERE) {
  return fetch_add<Order::kRelease, Scope::kSystem>(p, value SWITCHYARD_PASS_WHERE);
}
// Adds one, but wraps `last` and anything above it to 0; returns the old value.
SWITCHYARD_DEVICE uint32_t atomic_inc_wrap_relaxed_device(uint32_t* p, uint32_t last SWITCHYARD_WHERE) {
  return fetch_inc_wrap<Order::kRelaxed, Scope::kDevice>(p, last SWITCHYARD_PASS_WHERE);
}
SWITCHYARD_DEVICE uint32_t atomic_inc_wrap_acq_rel_device(uint32_t* p, uint32_t last SWITCHYARD_WHERE) {
  return fetch_inc_wrap<Order::kAcqRel, Scope::kDevice>(p, last SWITCHYARD_PASS_WHERE);
}
// Returns true if `*p` was `expected`; `*p` is then `desired`.
template <typename T>
SWITCHYARD_DEVICE bool atomic_cas_acq_rel_system(T* p, T expected, T desired SWITCHYARD_WHERE) {
  return compare_exchange<Order::kAcqRel, Scope::kSystem>(p, expected, desired SWITCHYARD_PASS_WHERE);
}

}  // namespace switchyard::inline SWITCHYARD_TARGET::target
