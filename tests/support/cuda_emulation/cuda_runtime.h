// Stands in for CUDA's header: the language subset of `csrc/cuda/*_kernels.cuh` for a C++ compiler.
#pragma once

#include <math.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "scheduler.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define SEAMSEG_EMULATED 1

using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
namespace emulation {
inline cudaError_t launch_error = cudaSuccess, kernel_error = cudaSuccess;  // set by examples, reported once
}
inline cudaError_t cudaGetLastError() { return std::exchange(emulation::launch_error, cudaSuccess); }
inline cudaError_t cudaDeviceSynchronize() { return std::exchange(emulation::kernel_error, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration argument"; }
inline int aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

// Barriers and exchanges. The place of the call is taken along: all threads have to meet at one.

using emulation::Site;
using emulation::the_machine;

inline void __syncthreads(Site site = Site::current()) { the_machine.wait_block(site); }

namespace emulation {

constexpr unsigned kFullMask = 0xffffffffu;

template <class T>
uint64_t pack(T value) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T unpack(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void require_full(unsigned mask, const Site& site) {
  if (mask != kFullMask) the_machine.fault("only full masks are emulated", site);
}

// What lane `source` gave; garbage where it has ended or never was.
template <class T>
T shuffle(unsigned mask, T value, int source, const Site& site) {
  require_full(mask, site);
  return the_machine.exchange(pack(value), site, [&](const uint64_t* slots, unsigned present) {
    const bool there = source >= 0 && source < kWarp && (present >> source & 1u) != 0;
    return unpack<T>(there ? slots[source] : kGarbage);
  });
}

}  // namespace emulation

// The lanes that voted so.
inline unsigned __ballot_sync(unsigned mask, int vote, Site site = Site::current()) {
  emulation::require_full(mask, site);
  return the_machine.exchange(vote != 0, site, [](const uint64_t* slots, unsigned present) {
    unsigned votes = 0;
    for (int lane = 0; lane < emulation::kWarp; ++lane) votes |= (slots[lane] != 0 ? 1u : 0u) << lane;
    return votes & present;
  });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, Site site = Site::current()) {
  const int lane = the_machine.lane(), source = lane ^ bits;
  return emulation::shuffle(mask, value, source / width > lane / width ? lane : source, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::current()) {
  const int lane = the_machine.lane(), source = lane + static_cast<int>(delta);
  return emulation::shuffle(mask, value, source / width > lane / width ? lane : source, site);
}

// Atomics. Threads may change places before one, never within it.

namespace emulation {

template <class T, class F>
T update(T* address, F&& change) {
  the_machine.perhaps_let_others();
  const T old = *address;
  *address = change(old);
  return old;
}

template <class T, class... Allowed>
constexpr bool is_one_of = (std::is_same_v<T, Allowed> || ...);

using Wide = unsigned long long;

}  // namespace emulation

#define SEAMSEG_ATOMIC(name, expression, ...)                                                \
  template <class T>                                                                         \
    requires emulation::is_one_of<T, __VA_ARGS__>                                            \
  T name(T* address, std::type_identity_t<T> value) {                                        \
    return emulation::update(address, [&](T old) -> T { return expression; });               \
  }
SEAMSEG_ATOMIC(atomicAdd, old + value, int, unsigned, emulation::Wide, float, double)
SEAMSEG_ATOMIC(atomicMin, value < old ? value : old, int, unsigned, long long, emulation::Wide)
#undef SEAMSEG_ATOMIC

// Arithmetic that a host has under other names, or not at all.

template <class A, class B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(std::fmin(static_cast<T>(a), static_cast<T>(b)));
  else return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
  requires(std::is_arithmetic_v<A> && std::is_arithmetic_v<B>)
auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(std::fmax(static_cast<T>(a), static_cast<T>(b)));
  else return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<emulation::Wide>(x)) + 1; }

// Rounded on the spot: the compiler fuses other products and sums, as nvcc does.
#define SEAMSEG_ROUNDED(name, T, expression) \
  inline T name(T a, T b) {                  \
    volatile T result = expression;          \
    return result;                           \
  }
SEAMSEG_ROUNDED(__fmul_rn, float, a* b)
SEAMSEG_ROUNDED(__dmul_rn, double, a* b)
#undef SEAMSEG_ROUNDED
