// The best partner of each box: a block a box, whose threads share the partners.
#pragma once

#include "boxes_kernels.cuh"

namespace seamseg {

constexpr int kMatchThreads = 256;

// Higher, or as high and earlier; NaN is highest.
template <class T>
__device__ __forceinline__ bool is_better(T iou, int64_t index, T best, int64_t best_index) {
  const bool nan = iou != iou, best_nan = best != best;
  if (nan || best_nan) return nan && (!best_nan || index < best_index);
  return iou > best || (iou == best && index < best_index);
}

// For each of the n boxes of `a` the best of the m > 0 of `b`. With at most kMatchThreads threads a block, a power of 2.
template <class S>
__global__ void best_partner(const S* a, int64_t n, const S* b, int64_t m, wide_t<S>* iou, int64_t* partner) {
  using T = wide_t<S>;
  __shared__ T ious[kMatchThreads];
  __shared__ int64_t partners[kMatchThreads];
  const int thread = threadIdx.x, threads = blockDim.x;
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const Box<T> box = box_at<T>(a, i);
    const T area = area_of(box);
    T best = -1;  // below every IoU
    int64_t best_index = m;
    for (int64_t j = thread; j < m; j += threads) {
      const Box<T> other = box_at<T>(b, j);
      const T value = iou_of(box, area, other, area_of(other));
      if (beats(value, best)) {
        best = value;
        best_index = j;
      }
    }
    ious[thread] = best;
    partners[thread] = best_index;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
      if (thread < half && is_better(ious[thread + half], partners[thread + half], ious[thread], partners[thread])) {
        ious[thread] = ious[thread + half];
        partners[thread] = partners[thread + half];
      }
      __syncthreads();
    }
    if (thread == 0) {
      iou[i] = ious[0];
      partner[i] = partners[0];
    }
    __syncthreads();
  }
}

}  // namespace seamseg
