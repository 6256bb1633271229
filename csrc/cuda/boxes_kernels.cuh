// What the kernels on boxes share.
#pragma once

#include "../boxes.h"
#include "device.cuh"

namespace seamseg {

// Box i of a contiguous N x 4 in the type that is computed in.
template <class T, class S>
__device__ __forceinline__ Box<T> box_at(const S* boxes, int64_t i) {
  const S* p = boxes + 4 * i;
  return {static_cast<T>(p[0]), static_cast<T>(p[1]), static_cast<T>(p[2]), static_cast<T>(p[3])};
}

// A box and its area.
template <class T>
struct Candidate {
  T y0, x0, y1, x1, area;

  __device__ __forceinline__ Box<T> box() const { return {y0, x0, y1, x1}; }
};

template <class T, class S>
__device__ __forceinline__ Candidate<T> candidate_at(const S* boxes, int64_t i) {
  const Box<T> box = box_at<T>(boxes, i);
  return {box.y0, box.x0, box.y1, box.x1, area_of(box)};
}

// `iou_of` the boxes, without a division where they are apart.
template <class T>
__device__ __forceinline__ T iou_of(const Candidate<T>& a, const Candidate<T>& b) {
  const T inter = intersection_of(a.box(), b.box()), joint = (a.area + b.area) - inter;
  return inter == T(0) && joint > T(0) ? inter : inter / joint;
}

}  // namespace seamseg
