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
#define __noinline__
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
inline cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t) {
  if (bytes > 0) std::memset(target, value, bytes);
  return cudaSuccess;
}
inline int aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

// Barriers and exchanges. The place of the call is taken along: all threads have to meet at one.

using emulation::Site;
using emulation::the_machine;

inline void __syncthreads(Site site = Site::current()) { the_machine.wait_block(site); }
inline void __threadfence() {}
inline void __threadfence_block() {}

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

// The lanes that voted so.
inline unsigned ballot(unsigned mask, bool vote, bool wanted, const Site& site) {
  require_full(mask, site);
  return the_machine.exchange(vote, site, [&](const uint64_t* slots, unsigned present) {
    unsigned votes = 0;
    for (int lane = 0; lane < kWarp; ++lane) votes |= ((slots[lane] != 0) == wanted ? 1u : 0u) << lane;
    return votes & present;
  });
}

}  // namespace emulation

inline void __syncwarp(unsigned mask = emulation::kFullMask, Site site = Site::current()) {
  emulation::ballot(mask, true, true, site);
}
inline unsigned __ballot_sync(unsigned mask, int vote, Site site = Site::current()) {
  return emulation::ballot(mask, vote != 0, true, site);
}
inline int __any_sync(unsigned mask, int vote, Site site = Site::current()) {
  return emulation::ballot(mask, vote != 0, true, site) != 0;
}
inline int __all_sync(unsigned mask, int vote, Site site = Site::current()) {
  return emulation::ballot(mask, vote != 0, false, site) == 0;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, Site site = Site::current()) {
  const int lane = the_machine.lane();
  return emulation::shuffle(mask, value, lane / width * width + (source & (width - 1)), site);
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
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, Site site = Site::current()) {
  const int lane = the_machine.lane(), source = lane - static_cast<int>(delta);
  return emulation::shuffle(mask, value, source < lane / width * width ? lane : source, site);
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
SEAMSEG_ATOMIC(atomicSub, old - value, int, unsigned)
SEAMSEG_ATOMIC(atomicExch, (static_cast<void>(old), value), int, unsigned, emulation::Wide, float)
SEAMSEG_ATOMIC(atomicMin, value < old ? value : old, int, unsigned, long long, emulation::Wide)
SEAMSEG_ATOMIC(atomicMax, value > old ? value : old, int, unsigned, long long, emulation::Wide)
SEAMSEG_ATOMIC(atomicAnd, old& value, int, unsigned, emulation::Wide)
SEAMSEG_ATOMIC(atomicOr, old | value, int, unsigned, emulation::Wide)
SEAMSEG_ATOMIC(atomicXor, old ^ value, int, unsigned, emulation::Wide)
#undef SEAMSEG_ATOMIC

template <class T>
  requires emulation::is_one_of<T, int, unsigned, emulation::Wide, unsigned short>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return emulation::update(address, [&](T old) { return old == compare ? value : old; });
}

// Arithmetic that a host has under other names, or not at all.

template <class T>
const T& __ldg(const T* address) {
  return *address;
}

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

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __saturatef(float x) { return x > 0 ? std::fmin(x, 1.0f) : 0.0f; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(emulation::Wide x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<emulation::Wide>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<emulation::Wide>(x)) + 1; }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// Rounded on the spot: the compiler fuses other products and sums, as nvcc does.
#define SEAMSEG_ROUNDED(name, T, expression) \
  inline T name(T a, T b) {                  \
    volatile T result = expression;          \
    return result;                           \
  }
SEAMSEG_ROUNDED(__fadd_rn, float, a + b)
SEAMSEG_ROUNDED(__fsub_rn, float, a - b)
SEAMSEG_ROUNDED(__fmul_rn, float, a* b)
SEAMSEG_ROUNDED(__fdiv_rn, float, a / b)
SEAMSEG_ROUNDED(__dadd_rn, double, a + b)
SEAMSEG_ROUNDED(__dsub_rn, double, a - b)
SEAMSEG_ROUNDED(__dmul_rn, double, a* b)
SEAMSEG_ROUNDED(__ddiv_rn, double, a / b)
#undef SEAMSEG_ROUNDED
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

// CUDA's conversions saturate and make 0 of NaN, where those of C++ are undefined.
namespace emulation {
template <class I, class F>
I convert(F x) {
  if (x != x) return 0;
  if (x <= static_cast<F>(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  if (x >= static_cast<F>(std::numeric_limits<I>::max())) return std::numeric_limits<I>::max();
  return static_cast<I>(x);
}
}  // namespace emulation
inline int __float2int_rd(float x) { return emulation::convert<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return emulation::convert<int>(std::ceil(x)); }
inline int __float2int_rn(float x) { return emulation::convert<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return emulation::convert<int>(std::trunc(x)); }
inline long long __float2ll_rd(float x) { return emulation::convert<long long>(std::floor(x)); }
