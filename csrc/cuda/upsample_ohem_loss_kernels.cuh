// Cross-entropy of upsampled logits over the hardest pixels. The k-th largest loss is found digit by digit in tables of
// counts that never leave the device; sums and the choice among equal losses are made in one order.
#pragma once

#include <cmath>

#include "../select.h"
#include "../upsample.h"
#include "device.cuh"

namespace seamseg::upsampling {

constexpr int64_t kVoidClass = 255;
// Threads of a block and blocks of the kernels that sum up: a thread a block can then join the parts.
constexpr int kParts = 256;

// What the choice of pixels is made of: digits of the threshold found so far, and how many pixels are still wanted among
// those that have them.
struct Choice {
  unsigned long long prefix;
  long long wanted;
};

template <class T>
struct Sampler {
  using W = wide_t<T>;
  const T *top_left, *top_right, *bottom_left, *bottom_right;
  int64_t class_stride;
  W lower, across;

  __device__ Sampler(const T* logits, const Shape& shape, const Tap& y, const Tap& x)
      : class_stride(shape.class_stride), lower(y.weight), across(x.weight) {
    const T* top = logits + y.first * shape.row_stride;
    const T* bottom = logits + y.second * shape.row_stride;
    top_left = top + x.first * shape.column_stride;
    top_right = top + x.second * shape.column_stride;
    bottom_left = bottom + x.first * shape.column_stride;
    bottom_right = bottom + x.second * shape.column_stride;
  }

  __device__ W score(int64_t c) const {
    const int64_t at = c * class_stride;
    const W left = (1 - lower) * static_cast<W>(top_left[at]) + lower * static_cast<W>(bottom_left[at]);
    const W right = (1 - lower) * static_cast<W>(top_right[at]) + lower * static_cast<W>(bottom_right[at]);
    return (1 - across) * left + across * right;
  }
};

template <class T>
__global__ void ohem_entropies(const T* logits, Shape shape, float scale_y, float scale_x, const int64_t* target,
                               int64_t height, int64_t width, wide_t<T>* entropy, wide_t<T>* normaliser) {
  using W = wide_t<T>;
  for (int64_t i = grid_start(); i < height * width; i += grid_step()) {
    const int64_t k = target[i];
    if (k < 0 || k >= shape.classes || k == kVoidClass) {
      entropy[i] = 0;
      normaliser[i] = static_cast<W>(INFINITY);
      continue;
    }
    const Tap y = source_tap(i / width, shape.height, scale_y), x = source_tap(i % width, shape.width, scale_x);
    const Sampler<T> sampler(logits, shape, y, x);
    W highest = -static_cast<W>(INFINITY), own = 0, sum = 0;
    for (int64_t c = 0; c < shape.classes; ++c) {
      const W score = sampler.score(c);
      highest = score > highest ? score : highest;
      own = c == k ? score : own;
    }
    for (int64_t c = 0; c < shape.classes; ++c) sum += std::exp(sampler.score(c) - highest);
    const W log_sum = std::log(sum);
    entropy[i] = (highest - own) + log_sum;
    normaliser[i] = highest + log_sum;
  }
}

__global__ void ohem_begin(Choice* choice, int64_t count) {
  choice->prefix = 0;
  choice->wanted = count;
}

// Counts of one digit among the losses whose higher digits (`known`) are those of the threshold; tables start at 0. The
// last digit may hold bits that are known already: they are the same for all that count.
template <class W>
__global__ void ohem_count(const W* entropy, int64_t total, unsigned long long known, int shift, const Choice* choice,
                           int32_t* table) {
  using K = typename Order<W>::key;
  __shared__ int32_t counts[kDigits];
  for (int d = threadIdx.x; d < kDigits; d += blockDim.x) counts[d] = 0;
  __syncthreads();
  const K prefix = static_cast<K>(choice->prefix);
  for (int64_t i = grid_start(); i < total; i += grid_step()) {
    const K key = order_key(entropy[i]);
    if ((key & static_cast<K>(known)) == prefix) atomicAdd(&counts[(key >> shift) & (kDigits - 1)], 1);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += blockDim.x) {
    if (counts[d] != 0) atomicAdd(&table[d], counts[d]);
  }
}

// One block of kParts threads: fix the digit.
__global__ void ohem_fix_digit(const int32_t* table, int shift, Choice* choice) {
  constexpr int kEach = kDigits / kParts;
  __shared__ int32_t counts[kDigits];
  __shared__ long long sums[kParts];
  long long sum = 0;
  for (int d = 0; d < kEach; ++d) {
    const int at = static_cast<int>(threadIdx.x) * kEach + d;
    counts[at] = table[at];
    sum += counts[at];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  long long wanted = choice->wanted;
  int part = kParts - 1;
  for (; part > 0 && sums[part] < wanted; --part) wanted -= sums[part];
  int digit = part * kEach + kEach - 1;
  for (; digit > part * kEach && counts[digit] < wanted; --digit) wanted -= counts[digit];
  choice->prefix |= static_cast<unsigned long long>(digit) << shift;
  choice->wanted = wanted;
}

// kParts blocks of kParts threads: each block sums the losses above the threshold in its part of the pixels, counts those
// equal to it, and marks those below.
template <class W>
__global__ void ohem_sum(const W* entropy, int64_t total, const Choice* choice, W* normaliser, double* part_sums,
                         long long* part_ties) {
  using K = typename Order<W>::key;
  __shared__ double sums[kParts];
  __shared__ long long ties[kParts];
  const int64_t begin = total * blockIdx.x / kParts, end = total * (blockIdx.x + 1) / kParts;
  const K threshold = static_cast<K>(choice->prefix);
  double sum = 0;
  long long equal = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const W value = entropy[i];
    const K key = order_key(value);
    if (key > threshold) sum += static_cast<double>(value);
    if (key == threshold) ++equal;
    if (key < threshold) normaliser[i] = static_cast<W>(INFINITY);
  }
  sums[threadIdx.x] = sum;
  ties[threadIdx.x] = equal;
  for (int step = kParts / 2; step > 0; step /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < step) {
      sums[threadIdx.x] += sums[threadIdx.x + step];
      ties[threadIdx.x] += ties[threadIdx.x + step];
    }
  }
  if (threadIdx.x == 0) {
    part_sums[blockIdx.x] = sums[0];
    part_ties[blockIdx.x] = ties[0];
  }
}

// kParts blocks of kParts threads: of the pixels equal to the threshold the first are kept. The first block makes the loss.
template <class W>
__global__ void ohem_keep(const W* entropy, int64_t total, int64_t count, const Choice* choice, const double* part_sums,
                          const long long* part_ties, W* normaliser, W* loss) {
  using K = typename Order<W>::key;
  __shared__ long long ranks[kParts];
  const K threshold = static_cast<K>(choice->prefix);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    double sum = 0;
    for (int part = 0; part < kParts; ++part) sum += part_sums[part];
    const double tied = static_cast<double>(choice->wanted) * static_cast<double>(from_order_key<W>(threshold));
    *loss = static_cast<W>((sum + tied) / static_cast<double>(count));
  }
  long long left = choice->wanted;
  for (unsigned part = 0; part < blockIdx.x; ++part) left -= part_ties[part];
  if (left >= part_ties[blockIdx.x]) return;
  const int64_t begin = total * blockIdx.x / kParts, end = total * (blockIdx.x + 1) / kParts;
  for (int64_t start = begin; start < end; start += kParts) {
    const int64_t i = start + threadIdx.x;
    const bool tie = i < end && order_key(entropy[i]) == threshold;
    ranks[threadIdx.x] = tie;
    __syncthreads();
    for (int step = 1; step < kParts; step *= 2) {
      const long long before = static_cast<int>(threadIdx.x) >= step ? ranks[threadIdx.x - step] : 0;
      __syncthreads();
      ranks[threadIdx.x] += before;
      __syncthreads();
    }
    if (tie && ranks[threadIdx.x] > left) normaliser[i] = static_cast<W>(INFINITY);
    left -= ranks[kParts - 1];
    __syncthreads();
  }
}

// Output pixels along an axis that a source pixel may reach.
__device__ __forceinline__ void reached(int64_t k, int64_t size, float scale, int64_t valid, int64_t& begin,
                                        int64_t& end) {
  // two more on both sides than exact arithmetic needs: taps are asked for each pixel anyway
  begin = k == 0 ? 0 : static_cast<int64_t>((static_cast<double>(k) - 0.5) / scale - 0.5) - 2;
  end = k == size - 1 ? valid : static_cast<int64_t>((static_cast<double>(k) + 1.5) / scale - 0.5) + 3;
  if (begin < 0) begin = 0;
  if (end > valid) end = valid;
}

template <class W>
__device__ __forceinline__ W reach(const Tap& tap, int64_t k) {
  const W second = tap.weight;
  return (tap.first == k ? 1 - second : 0) + (tap.second == k ? second : 0);
}

// A thread gathers the gradient of one logit from the pixels around it, in one order. Neighbouring threads take
// neighbouring classes where the classes of a pixel lie beside each other, neighbouring columns otherwise.
template <class T>
__global__ void ohem_gradient(const T* logits, Shape shape, float scale_y, float scale_x, const int64_t* target,
                              const wide_t<T>* normaliser, const wide_t<T>* grad, int64_t count, int64_t height,
                              int64_t width, wide_t<T>* gradient) {
  using W = wide_t<T>;
  const bool by_class = shape.class_stride == 1;
  const W share = *grad / static_cast<W>(count);
  const int64_t plane = shape.height * shape.width;
  for (int64_t i = grid_start(); i < shape.classes * plane; i += grid_step()) {
    const int64_t c = by_class ? i % shape.classes : i / plane;
    const int64_t cell = by_class ? i / shape.classes : i % plane;
    const int64_t row = cell / shape.width, column = cell % shape.width;
    int64_t y0, y1, x0, x1;
    reached(row, shape.height, scale_y, height, y0, y1);
    reached(column, shape.width, scale_x, width, x0, x1);
    W sum = 0;
    for (int64_t oy = y0; oy < y1; ++oy) {
      const Tap y = source_tap(oy, shape.height, scale_y);
      const W down = reach<W>(y, row);
      if (down == 0) continue;
      for (int64_t ox = x0; ox < x1; ++ox) {
        const Tap x = source_tap(ox, shape.width, scale_x);
        const W across = reach<W>(x, column);
        const W n = normaliser[oy * width + ox];
        if (across == 0 || n == static_cast<W>(INFINITY)) continue;
        const W probability = std::exp(Sampler<T>(logits, shape, y, x).score(c) - n);
        const W own = target[oy * width + ox] == c ? 1 : 0;
        sum += down * across * (probability - own);
      }
    }
    gradient[c * plane + cell] = sum * share;
  }
}

}  // namespace seamseg::upsampling
