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

}  // namespace seamseg
