// Pasting instance masks into an id map: two launches an instance, one that counts and one that writes. What is decided
// stays on the device. The probability is computed anew in the second: it costs less than being stored.
#pragma once

#include "../paste.h"
#include "device.cuh"

namespace seamseg {

struct PasteCrop {
  PasteAxis y, x;
  int64_t columns, count;
};

__device__ __forceinline__ PasteCrop paste_crop(const float* box, int64_t cells_y, int64_t cells_x, int64_t height,
                                                int64_t width) {
  PasteCrop crop;
  crop.y = paste_axis(box[0], box[2], height, cells_y);
  crop.x = paste_axis(box[1], box[3], width, cells_x);
  crop.columns = crop.x.stop - crop.x.start;
  const int64_t rows = crop.y.stop - crop.y.start;
  crop.count = rows > 0 && crop.columns > 0 ? rows * crop.columns : 0;
  return crop;
}

__device__ __forceinline__ bool paste_hits(const float* mask, const PasteCrop& crop, int64_t y, int64_t x) {
  const PasteTap row = paste_tap(crop.y, y), column = paste_tap(crop.x, x);
  const float* upper = mask + static_cast<int64_t>(row.first) * crop.x.cells;
  const float* lower = mask + static_cast<int64_t>(row.second) * crop.x.cells;
  const auto above = static_cast<float>(
      paste_blend(upper[column.first], upper[column.second], column.first_weight, column.second_weight));
  const auto below = static_cast<float>(
      paste_blend(lower[column.first], lower[column.second], column.first_weight, column.second_weight));
  return paste_blend(above, below, row.first_weight, row.second_weight) > 0.5;
}

// counts: 2, the pixels of the instance and those still free; 0 before.
template <class Id>
__global__ void paste_count(const float* mask, const float* box, int64_t cells_y, int64_t cells_x, const Id* ids,
                            int64_t height, int64_t width, int32_t* counts) {
  const PasteCrop crop = paste_crop(box, cells_y, cells_x, height, width);
  int32_t area = 0, free = 0;
  for (int64_t i = grid_start(); i < crop.count; i += grid_step()) {
    const int64_t y = crop.y.start + i / crop.columns, x = crop.x.start + i % crop.columns;
    if (!paste_hits(mask, crop, y, x)) continue;
    ++area;
    if (ids[y * width + x] == 0) ++free;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    area += __shfl_down_sync(0xffffffffu, area, offset);
    free += __shfl_down_sync(0xffffffffu, free, offset);
  }
  if (threadIdx.x % 32 != 0) return;
  if (area != 0) atomicAdd(counts, area);
  if (free != 0) atomicAdd(counts + 1, free);
}

// before: 2, how many instances were kept before this one, and before the one after it.
template <class Id>
__global__ void paste_write(const float* mask, const float* box, int64_t cells_y, int64_t cells_x, Id* ids,
                            int64_t height, int64_t width, const int32_t* counts, double overlap_threshold,
                            bool keep_empty, int64_t first_id, int32_t* before, bool* kept) {
  const bool keeps = paste_keeps(counts[0], counts[1], overlap_threshold, keep_empty);
  const auto id = static_cast<Id>(first_id + before[0]);
  if (grid_start() == 0) {
    *kept = keeps;
    before[1] = before[0] + keeps;
  }
  if (!keeps || counts[1] == 0) return;
  const PasteCrop crop = paste_crop(box, cells_y, cells_x, height, width);
  for (int64_t i = grid_start(); i < crop.count; i += grid_step()) {
    const int64_t y = crop.y.start + i / crop.columns, x = crop.x.start + i % crop.columns;
    Id* pixel = ids + y * width + x;
    if (*pixel == 0 && paste_hits(mask, crop, y, x)) *pixel = id;
  }
}

}  // namespace seamseg
