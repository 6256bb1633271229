// IoU of all pairs of two sets of boxes: a thread a pair; the gradient: a block a box.
#pragma once

#include "boxes_kernels.cuh"

namespace seamseg {

constexpr int kGradientThreads = 128;

template <class S>
__global__ void box_iou_kernel(const S* a, int64_t n, const S* b, int64_t m, S* out) {
  using T = wide_t<S>;
  for (int64_t i = grid_start(); i < n * m; i += grid_step()) {
    const Box<T> first = box_at<T>(a, i / m), second = box_at<T>(b, i % m);
    out[i] = static_cast<S>(iou_of(first, area_of(first), second, area_of(second)));
  }
}

// The gradient of the boxes of `a`; `row` and `column` are the strides of `grad` along a and along b. To be launched
// with kGradientThreads.
template <class S>
__global__ void gradient_of_first_kernel(const S* a, int64_t n, const S* b, int64_t m, const S* grad, int64_t row,
                                         int64_t column, S* out) {
  using T = wide_t<S>;
  __shared__ T sums[4][kGradientThreads];
  const int thread = threadIdx.x;
  for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const Box<T> box = box_at<T>(a, i);
    T sum[4] = {0, 0, 0, 0};
    for (int64_t j = thread; j < m; j += kGradientThreads) {
      add_iou_gradient(box, box_at<T>(b, j), static_cast<T>(grad[i * row + j * column]), sum);
    }
    for (int k = 0; k < 4; ++k) sums[k][thread] = sum[k];
    __syncthreads();
    for (int half = kGradientThreads / 2; half > 0; half /= 2) {
      if (thread < half) {
        for (int k = 0; k < 4; ++k) sums[k][thread] += sums[k][thread + half];
      }
      __syncthreads();
    }
    if (thread < 4) out[4 * i + thread] = static_cast<S>(sums[thread][0]);
    __syncthreads();
  }
}

}  // namespace seamseg
