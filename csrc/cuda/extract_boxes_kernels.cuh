// Bounding boxes of the ids of a map. Only the pixels where a run starts or ends touch memory atomically.
#pragma once

#include "device.cuh"

namespace seamseg {

// extents: n x 4 of int32, (y0, x0, -y1, -x1), all to be lowered; an id that is absent keeps its INT_MAX.
template <class T>
__global__ void extract_extents(const T* ids, int64_t count, int64_t height, int64_t width, int64_t n, int32_t* extents) {
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const auto id = static_cast<int64_t>(ids[i]);
    if (id < 0 || id >= n) continue;
    const int64_t x = i % width;
    const bool starts = x == 0 || ids[i - 1] != ids[i];
    const bool ends = x == width - 1 || ids[i + 1] != ids[i];
    if (!starts && !ends) continue;
    const auto y = static_cast<int32_t>(i / width % height);
    int32_t* extent = extents + 4 * id;
    // most pixels change nothing: a plain read first keeps them from queueing for the atomics
    if (y < extent[0]) atomicMin(extent, y);
    if (-(y + 1) < extent[2]) atomicMin(extent + 2, -(y + 1));
    const auto column = static_cast<int32_t>(x);
    if (starts && column < extent[1]) atomicMin(extent + 1, column);
    if (ends && -(column + 1) < extent[3]) atomicMin(extent + 3, -(column + 1));
  }
}

__global__ void boxes_of_extents(const int32_t* extents, int64_t n, float* boxes) {
  for (int64_t id = grid_start(); id < n; id += grid_step()) {
    const int32_t* extent = extents + 4 * id;
    const bool absent = extent[2] > 0;
    for (int k = 0; k < 4; ++k) {
      boxes[4 * id + k] = absent ? -1.0f : static_cast<float>(k < 2 ? extent[k] : -extent[k]);
    }
  }
}

}  // namespace seamseg
