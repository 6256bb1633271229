// What compilers have different words for.
#pragma once

// One binary for every x86: the loader picks the widest vectors the processor has. Put it on functions that hold the
// loops themselves: a lambda given to parallel_for is a function of its own and would not inherit it.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define SEAMSEG_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SEAMSEG_CLONES
#endif

#if defined(_MSC_VER)
#define SEAMSEG_INLINE __forceinline
#define SEAMSEG_RESTRICT __restrict
#define SEAMSEG_EXPORT extern "C" __declspec(dllexport)
#else
#define SEAMSEG_INLINE inline __attribute__((always_inline))
#define SEAMSEG_RESTRICT __restrict__
#define SEAMSEG_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Functions for both sides.
#if defined(__CUDACC__)
#define SEAMSEG_HD __host__ __device__ __forceinline__
#elif defined(_MSC_VER)
#define SEAMSEG_HD __forceinline
#else
#define SEAMSEG_HD inline __attribute__((always_inline))
#endif
