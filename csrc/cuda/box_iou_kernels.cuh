// IoU of all pairs of two sets of boxes: a thread a pair.
#pragma once

#include "boxes_kernels.cuh"

namespace seamseg {

template <class S>
__global__ void box_iou_kernel(const S* a, int64_t n, const S* b, int64_t m, S* out) {
  using T = wide_t<S>;
  for (int64_t i = grid_start(); i < n * m; i += grid_step()) {
    const Box<T> first = box_at<T>(a, i / m), second = box_at<T>(b, i % m);
    out[i] = static_cast<S>(iou_of(first, area_of(first), second, area_of(second)));
  }
}

}  // namespace seamseg
