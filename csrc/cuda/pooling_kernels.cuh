// Average pooling of stride 1, axis by axis. Maps are dense `outer x rows x columns x inner`: a plane each with inner = 1,
// or an image each with the channels inside. Every sum is made in the wide type, of short runs that are then joined.
#pragma once

#include "device.cuh"

namespace seamseg {

constexpr int kPoolRun = 8;

// A sum of sums of kPoolRun numbers: few roundings, however long it gets.
template <class W>
struct PoolSum {
  W sum = 0, run = 0;
  int64_t count = 0;

  __device__ __forceinline__ void add(W value) {
    run += value;
    if (++count % kPoolRun != 0) return;
    sum += run;
    run = 0;
  }
  __device__ __forceinline__ W total() const { return sum + run; }
};

// Sums over k rows: window i takes rows i - shift .. i - shift + k - 1, those outside count as zeros. A thread makes the
// windows that begin in one block of k rows, each from the end of its block and the beginning of the next.
template <class T, class W>
__global__ void pool_down(const T* in, int64_t outer, int64_t rows, int64_t length, int64_t k, int64_t shift,
                          int64_t windows, W* out) {
  const int64_t blocks = (windows + k - 1) / k;
  for (int64_t i = grid_start(); i < outer * blocks * length; i += grid_step()) {
    const int64_t place = i % length, block = i / length % blocks, map = i / length / blocks;
    const T* column = in + map * rows * length + place;
    W* sums = out + map * windows * length + place;
    const int64_t first = block * k, end = first + k < windows ? first + k : windows;
    PoolSum<W> tail, head;
    for (int64_t j = first + k - 1; j >= first; --j) {
      const int64_t row = j - shift;
      if (row >= 0 && row < rows) tail.add(static_cast<W>(column[row * length]));
      if (j < end) sums[j * length] = tail.total();
    }
    for (int64_t j = first + 1; j < end; ++j) {
      const int64_t row = j + k - 1 - shift;
      if (row >= 0 && row < rows) head.add(static_cast<W>(column[row * length]));
      sums[j * length] += head.total();
    }
  }
}

struct PoolAcross {
  int64_t in_rows, in_columns;  // of the sums over rows
  int64_t rows, columns;        // of the result
  int64_t inner;
  int64_t k, windows;             // width of a window; how many places there are for it
  int64_t row_shift, shift, low;  // row y shows row y - row_shift; column x the window at x - shift, from `low` on
};

__device__ __forceinline__ int64_t pool_clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : (value > high ? high : value);
}

// Sums over k columns, scaled, with the first and last row and column repeated where the map is larger. A thread makes
// kPoolRun columns beside each other: what all their windows share, and what each has on the left and right of it.
template <class W, class T>
__global__ void pool_across(const W* in, PoolAcross shape, int64_t count, W factor, T* out) {
  const int64_t runs = (shape.columns + kPoolRun - 1) / kPoolRun;
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const int64_t channel = i % shape.inner, x = i / shape.inner % runs * kPoolRun;
    const int64_t line = i / shape.inner / runs, y = line % shape.rows, map = line / shape.rows;
    const int64_t row = pool_clamp(y - shape.row_shift, 0, shape.in_rows - 1);
    const W* source = in + (map * shape.in_rows + row) * shape.in_columns * shape.inner + channel;
    T* result = out + (line * shape.columns + x) * shape.inner + channel;
    const auto begin = [&](int64_t column) {
      const int64_t first = pool_clamp(column - shape.shift, shape.low, shape.windows - 1);
      return first > 0 ? first : 0;
    };
    const auto end = [&](int64_t column) {
      const int64_t last = pool_clamp(column - shape.shift, shape.low, shape.windows - 1) + shape.k;
      return last < shape.in_columns ? last : shape.in_columns;
    };
    const int filled = static_cast<int>(shape.columns - x < kPoolRun ? shape.columns - x : kPoolRun);
    const int64_t low = begin(x + filled - 1), high = end(x);
    if (low >= high) {
      for (int u = 0; u < filled; ++u) {
        PoolSum<W> sum;
        for (int64_t j = begin(x + u); j < end(x + u); ++j) sum.add(source[j * shape.inner]);
        result[u * shape.inner] = static_cast<T>(sum.total() * factor);
      }
      continue;
    }
    PoolSum<W> shared;
    for (int64_t j = low; j < high; ++j) shared.add(source[j * shape.inner]);
    W left[kPoolRun];  // of the shared part, and with it
    PoolSum<W> before, behind;
    int64_t at = low;
#pragma unroll
    for (int u = kPoolRun - 1; u >= 0; --u) {
      if (u < filled) {
        for (const int64_t stop = begin(x + u); at > stop;) before.add(source[--at * shape.inner]);
      }
      left[u] = shared.total() + before.total();
    }
    at = high;
#pragma unroll
    for (int u = 0; u < kPoolRun; ++u) {
      if (u >= filled) break;
      for (const int64_t stop = end(x + u); at < stop; ++at) behind.add(source[at * shape.inner]);
      result[u * shape.inner] = static_cast<T>((left[u] + behind.total()) * factor);
    }
  }
}

// The adjoint of the padding: what fell on it goes to the edge. `inner_rows x inner_columns` are left, the first of them
// at (top, left).
template <class T, class W>
__global__ void pool_fold(const T* in, int64_t rows, int64_t columns, int64_t inner, int64_t inner_rows,
                          int64_t inner_columns, int64_t top, int64_t left, int64_t count, W* out) {
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const int64_t channel = i % inner, x = i / inner % inner_columns;
    const int64_t line = i / inner / inner_columns, y = line % inner_rows, map = line / inner_rows;
    const int64_t y0 = y == 0 ? 0 : y + top, y1 = y == inner_rows - 1 ? rows : y + top + 1;
    const int64_t x0 = x == 0 ? 0 : x + left, x1 = x == inner_columns - 1 ? columns : x + left + 1;
    PoolSum<W> sum;
    for (int64_t r = y0; r < y1; ++r) {
      const T* source = in + (map * rows + r) * columns * inner + channel;
      for (int64_t c = x0; c < x1; ++c) sum.add(static_cast<W>(source[c * inner]));
    }
    out[i] = sum.total();
  }
}

}  // namespace seamseg
