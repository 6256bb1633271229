// Pasting instance masks into an id map: one launch finds the pixels of a chunk of instances as bits, one block decides
// on them in order, one launch writes their ids. What is decided stays on the device.
#pragma once

#include "../paste.h"
#include "device.cuh"

namespace seamseg {

constexpr int kDecideThreads = 256;  // few: what every warp repeats for an instance takes most of the time
constexpr int kDecideWarps = kDecideThreads / 32;
constexpr int kDecideBatch = 4;  // words of a thread whose loads are under way together
constexpr int kSampledRows = 8;  // that a warp samples in one word of columns, whose taps it computes once

// The part of the map that a box can reach, in words of 32 pixels of a row; words of the map start at its left edge.
struct PasteCrop {
  PasteAxis y, x;
  int32_t first_word = 0;
  uint32_t row_words = 0, rows = 0;

  __device__ __forceinline__ uint32_t words() const { return rows * row_words; }
};

__device__ __forceinline__ PasteCrop paste_crop(const float* box, int64_t cells_y, int64_t cells_x, int64_t height,
                                                int64_t width) {
  PasteCrop crop;
  crop.y = paste_axis(box[0], box[2], height, cells_y);
  crop.x = paste_axis(box[1], box[3], width, cells_x);
  if (crop.y.stop <= crop.y.start || crop.x.stop <= crop.x.start) return crop;
  crop.first_word = static_cast<int32_t>(crop.x.start / 32);
  crop.row_words = static_cast<uint32_t>((crop.x.stop - 1) / 32) - crop.first_word + 1;
  crop.rows = static_cast<uint32_t>(crop.y.stop - crop.y.start);
  return crop;
}

__device__ __forceinline__ bool paste_hits(const float* mask, const PasteCrop& crop, const PasteTap& row,
                                           const PasteTap& column) {
  const float* upper = mask + static_cast<int64_t>(row.first) * crop.x.cells;
  const float* lower = mask + static_cast<int64_t>(row.second) * crop.x.cells;
  const auto above = static_cast<float>(
      paste_blend(upper[column.first], upper[column.second], column.first_weight, column.second_weight));
  const auto below = static_cast<float>(
      paste_blend(lower[column.first], lower[column.second], column.first_weight, column.second_weight));
  return paste_blend(above, below, row.first_weight, row.second_weight) > 0.5;
}

// taken: height x row_words, bits of the pixels with an id.
template <class Id>
__global__ void paste_taken(const Id* ids, int64_t height, int64_t width, uint32_t row_words, uint32_t* taken) {
  const int lane = threadIdx.x % 32;
  const auto words = static_cast<uint32_t>(height) * row_words;
  for (int64_t i = grid_start() / 32; i < words; i += grid_step() / 32) {
    const auto word = static_cast<uint32_t>(i);
    const int64_t y = word / row_words, x = static_cast<int64_t>(word % row_words) * 32 + lane;
    const uint32_t bits = __ballot_sync(0xffffffffu, x < width && ids[y * width + x] != 0);
    if (lane == 0) taken[word] = bits;
  }
}

// planes: the words of the crop of each instance (y of the grid), row by row; one instance has room for plane_words.
__global__ void paste_cover(const float* masks, const float* boxes, int64_t cells_y, int64_t cells_x, int64_t height,
                            int64_t width, int64_t plane_words, uint32_t* planes) {
  const int64_t instance = blockIdx.y;
  const PasteCrop crop = paste_crop(boxes + 4 * instance, cells_y, cells_x, height, width);
  const float* mask = masks + instance * cells_y * cells_x;
  uint32_t* plane = planes + instance * plane_words;
  const int lane = threadIdx.x % 32;
  const uint32_t parts = (crop.rows + kSampledRows - 1) / kSampledRows * crop.row_words;
  for (int64_t i = grid_start() / 32; i < parts; i += grid_step() / 32) {
    const uint32_t band = static_cast<uint32_t>(i) / crop.row_words, word = static_cast<uint32_t>(i) % crop.row_words;
    const int64_t x = (static_cast<int64_t>(crop.first_word) + word) * 32 + lane;
    const bool inside = x >= crop.x.start && x < crop.x.stop;
    const PasteTap column = paste_tap(crop.x, x);
    const uint32_t end = min((band + 1) * kSampledRows, crop.rows);
    for (uint32_t y = band * kSampledRows; y < end; ++y) {
      const bool hits = inside && paste_hits(mask, crop, paste_tap(crop.y, crop.y.start + y), column);
      const uint32_t bits = __ballot_sync(0xffffffffu, hits);
      if (lane == 0) plane[y * crop.row_words + word] = bits;
    }
  }
}

// One block of kDecideThreads. Leaves in the planes of the instances that get an id the pixels that get it, and in
// `numbers` this id, 0 for none. kept_before: 1, how many instances of earlier chunks were kept; brought up to date.
__global__ void __launch_bounds__(kDecideThreads)
    paste_decide(const float* boxes, int32_t count, int64_t cells_y, int64_t cells_x, int64_t height, int64_t width,
                 uint32_t map_row_words, int64_t plane_words, uint32_t* planes, uint32_t* taken,
                 double overlap_threshold, bool keep_empty, int64_t first_id, int64_t* kept_before, int64_t* numbers,
                 bool* kept) {
  __shared__ int32_t sums[2][kDecideWarps];
  const int lane = threadIdx.x % 32;
  int64_t before = *kept_before;
  for (int32_t instance = 0; instance < count; ++instance) {
    const PasteCrop crop = paste_crop(boxes + 4 * instance, cells_y, cells_x, height, width);
    uint32_t* plane = planes + instance * plane_words;
    uint32_t* below = taken + crop.y.start * map_row_words + crop.first_word;
    const uint32_t words = crop.words(), row_words = max(crop.row_words, 1u);
    // f(i, word i of the plane, place, word of the map at this place) for the words of this thread, without divisions
    const auto each_word = [&](auto&& f) {
      uint32_t x = threadIdx.x % row_words, place = threadIdx.x / row_words * map_row_words + x;
      for (uint32_t first = threadIdx.x; first < words; first += kDecideBatch * kDecideThreads) {
        uint32_t bits[kDecideBatch], others[kDecideBatch], places[kDecideBatch];
#pragma unroll
        for (int k = 0; k < kDecideBatch; ++k) {
          const uint32_t i = first + k * kDecideThreads;
          bits[k] = i < words ? plane[i] : 0;
          others[k] = i < words ? below[place] : 0;
          places[k] = place;
          x += kDecideThreads % row_words;
          place += kDecideThreads / row_words * map_row_words + kDecideThreads % row_words;
          if (x >= row_words) {
            x -= row_words;
            place += map_row_words - row_words;
          }
        }
#pragma unroll
        for (int k = 0; k < kDecideBatch; ++k) {
          if (first + k * kDecideThreads < words) f(first + k * kDecideThreads, bits[k], places[k], others[k]);
        }
      }
    };
    int32_t area = 0, free = 0;
    each_word([&](uint32_t, uint32_t bits, uint32_t, uint32_t others) {
      area += __popc(bits);
      free += __popc(bits & ~others);
    });
    for (int offset = 16; offset > 0; offset /= 2) {
      area += __shfl_xor_sync(0xffffffffu, area, offset);
      free += __shfl_xor_sync(0xffffffffu, free, offset);
    }
    if (lane == 0) {
      sums[0][threadIdx.x / 32] = area;
      sums[1][threadIdx.x / 32] = free;
    }
    __syncthreads();
    area = sums[0][lane % kDecideWarps];
    free = sums[1][lane % kDecideWarps];
    for (int offset = kDecideWarps / 2; offset > 0; offset /= 2) {
      area += __shfl_xor_sync(0xffffffffu, area, offset);
      free += __shfl_xor_sync(0xffffffffu, free, offset);
    }
    const bool keeps = paste_keeps(area, free, overlap_threshold, keep_empty);
    const int64_t number = keeps && free > 0 ? first_id + before : 0;
    if (number != 0) {
      each_word([&](uint32_t i, uint32_t bits, uint32_t place, uint32_t others) {
        plane[i] = bits & ~others;
        below[place] = others | bits;
      });
    }
    if (threadIdx.x == 0) {
      numbers[instance] = number;
      kept[instance] = keeps;
    }
    before += keeps;
    __syncthreads();
  }
  if (threadIdx.x == 0) *kept_before = before;
}

template <class Id>
__global__ void paste_write(const float* boxes, int64_t cells_y, int64_t cells_x, int64_t height, int64_t width,
                            int64_t plane_words, const uint32_t* planes, const int64_t* numbers, Id* ids) {
  const int64_t instance = blockIdx.y;
  const auto id = static_cast<Id>(numbers[instance]);
  if (id == 0) return;
  const PasteCrop crop = paste_crop(boxes + 4 * instance, cells_y, cells_x, height, width);
  const uint32_t* plane = planes + instance * plane_words;
  const int lane = threadIdx.x % 32;
  for (int64_t i = grid_start() / 32; i < crop.words(); i += grid_step() / 32) {
    const auto word = static_cast<uint32_t>(i);
    if ((plane[word] >> lane & 1u) == 0) continue;
    const int64_t y = crop.y.start + word / crop.row_words;
    const int64_t x = (static_cast<int64_t>(crop.first_word) + word % crop.row_words) * 32 + lane;
    ids[y * width + x] = id;
  }
}

}  // namespace seamseg
