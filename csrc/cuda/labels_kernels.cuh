// Counting the labels of a map, and putting them where an id map is free.
#pragma once

#include "device.cuh"

namespace seamseg {

// Labels that a block counts in its own fast memory before it adds to what all blocks share.
constexpr int64_t kSharedLabels = 1024;

// counts: n, 0 before. ids may be null: then every pixel counts.
template <class Label, class Id>
__global__ void label_counts(const Label* labels, const Id* ids, int64_t count, int64_t n, int32_t* counts) {
  __shared__ int32_t local[kSharedLabels];
  for (int64_t i = threadIdx.x; i < kSharedLabels; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const auto label = static_cast<int64_t>(labels[i]);
    if (label < 0 || label >= n || (ids != nullptr && ids[i] != 0)) continue;
    if (label < kSharedLabels) {
      atomicAdd(local + label, 1);
    } else {
      atomicAdd(counts + label, 1);
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kSharedLabels && i < n; i += blockDim.x) {
    if (local[i] != 0) atomicAdd(counts + i, local[i]);
  }
}

template <class Id, class Label>
__global__ void fill_free_pixels(Id* ids, const Label* labels, int64_t count, const int64_t* table, int64_t n) {
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const auto label = static_cast<int64_t>(labels[i]);
    if (ids[i] == 0 && label >= 0 && label < n) ids[i] = static_cast<Id>(table[label]);
  }
}

}  // namespace seamseg
