// The best partner of each box. A thread a box where the partners are few; else a thread walks through partners for some
// boxes at once, and blocks share the partners.
#pragma once

#include "boxes_kernels.cuh"

namespace seamseg {

constexpr int kMatchThreads = 256;
constexpr int kMatchWarps = kMatchThreads / 32;
constexpr int kMatchGroup = kMatchWarps;  // boxes of a block that walks through partners

// Higher, or as high and earlier; NaN is highest.
template <class T>
__device__ __forceinline__ bool is_better(T iou, int64_t index, T best, int64_t best_index) {
  const bool nan = iou != iou, best_nan = best != best;
  if (nan || best_nan) return nan && (!best_nan || index < best_index);
  return iou > best || (iou == best && index < best_index);
}

template <class T>
struct Partner {
  T iou = -1;  // below every IoU
  int64_t index;

  // of the candidates in their order
  __device__ __forceinline__ void consider(T value, int64_t i) {
    if (!beats(value, iou)) return;
    iou = value;
    index = i;
  }
  // of candidates in any order
  __device__ __forceinline__ void join(T value, int64_t i) {
    if (!is_better(value, i, iou, index)) return;
    iou = value;
    index = i;
  }
  // all of a warp: lane 0 has the best
  __device__ __forceinline__ void join_warp() {
    for (int half = 16; half > 0; half /= 2) {
      const T other = __shfl_down_sync(0xffffffffu, iou, half);
      const long long place = __shfl_down_sync(0xffffffffu, static_cast<long long>(index), half);
      if (static_cast<int>(threadIdx.x) % 32 < half) join(other, place);
    }
  }
};

// For each of the n boxes of `a` the best of the m > 0 of `b`, which a block has in its shared memory.
template <class S>
__global__ void __launch_bounds__(kMatchThreads)
    best_partner(const S* a, int64_t n, const S* b, int64_t m, wide_t<S>* iou, int64_t* partner) {
  using T = wide_t<S>;
  __shared__ Candidate<T> tile[kMatchThreads];
  const int thread = threadIdx.x;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kMatchThreads; first < n; first += grid_step()) {
    const int64_t i = first + thread;
    Candidate<T> box = {0, 0, 0, 0, 0};
    if (i < n) box = candidate_at<T>(a, i);
    Partner<T> best{.index = m};
    for (int64_t start = 0; start < m; start += kMatchThreads) {
      __syncthreads();
      if (start + thread < m) tile[thread] = candidate_at<T>(b, start + thread);
      __syncthreads();
      const int filled = m - start < kMatchThreads ? static_cast<int>(m - start) : kMatchThreads;
      for (int j = 0; j < filled; ++j) best.consider(iou_of(box, tile[j]), start + j);
    }
    if (i < n) {
      iou[i] = best.iou;
      partner[i] = best.index;
    }
  }
}

// The same for few boxes and many partners: blocks of x take kMatchGroup boxes, blocks of y every gridDim.y-th stretch of
// the partners. iou, partner: n x gridDim.y.
template <class S>
__global__ void __launch_bounds__(kMatchThreads)
    best_of_many(const S* a, int64_t n, const S* b, int64_t m, wide_t<S>* iou, int64_t* partner) {
  using T = wide_t<S>;
  __shared__ T ious[kMatchGroup][kMatchThreads];
  __shared__ int64_t partners[kMatchGroup][kMatchThreads];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kMatchGroup;
  Candidate<T> boxes[kMatchGroup];
  Partner<T> best[kMatchGroup];
#pragma unroll
  for (int g = 0; g < kMatchGroup; ++g) {
    boxes[g] = candidate_at<T>(a, first + g < n ? first + g : n - 1);
    best[g].index = m;
  }
  const int64_t step = static_cast<int64_t>(gridDim.y) * kMatchThreads;
  for (int64_t j = static_cast<int64_t>(blockIdx.y) * kMatchThreads + thread; j < m; j += step) {
    const Candidate<T> other = candidate_at<T>(b, j);
#pragma unroll
    for (int g = 0; g < kMatchGroup; ++g) best[g].consider(iou_of(boxes[g], other), j);
  }
#pragma unroll
  for (int g = 0; g < kMatchGroup; ++g) {
    ious[g][thread] = best[g].iou;
    partners[g][thread] = best[g].index;
  }
  __syncthreads();
  // a warp a box
  Partner<T> all{.index = m};
  for (int k = lane; k < kMatchThreads; k += 32) all.join(ious[warp][k], partners[warp][k]);
  all.join_warp();
  if (lane == 0 && first + warp < n) {
    iou[(first + warp) * gridDim.y + blockIdx.y] = all.iou;
    partner[(first + warp) * gridDim.y + blockIdx.y] = all.index;
  }
}

// The best of the parts, a warp a box.
template <class T>
__global__ void join_partners(const T* ious, const int64_t* partners, int64_t n, int64_t parts, T* iou,
                              int64_t* partner) {
  const int64_t i = grid_start() / 32;
  const int lane = threadIdx.x % 32;
  if (i >= n) return;
  Partner<T> all{.iou = ious[i * parts], .index = partners[i * parts]};
  for (int64_t p = lane; p < parts; p += 32) all.join(ious[i * parts + p], partners[i * parts + p]);
  all.join_warp();
  if (lane != 0) return;
  iou[i] = all.iou;
  partner[i] = all.index;
}

}  // namespace seamseg
