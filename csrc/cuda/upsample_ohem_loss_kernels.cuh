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
// Threads of a block that works on a tile of the image, and the pixels and logits that it has room for.
constexpr int kTileThreads = 256, kTileRows = 8, kTileColumns = kTileThreads / kTileRows;
constexpr int kClasses = 4;  // that a tile of the gradient takes at once
template <class T>
constexpr int kTileBlocks = sizeof(T) == 8 ? 2 : 4;  // that share a multiprocessor, for enough registers
template <class W>
constexpr int kTileLogits = 20480 / sizeof(W);

// What the choice of pixels is made of: digits of the threshold found so far, and how many pixels are still wanted among
// those that have them.
struct Choice {
  unsigned long long prefix;
  long long wanted;
};

template <class W>
__device__ __forceinline__ W mixed(W top_left, W top_right, W bottom_left, W bottom_right, W lower, W across) {
  const W left = (1 - lower) * top_left + lower * bottom_left;
  const W right = (1 - lower) * top_right + lower * bottom_right;
  return (1 - across) * left + across * right;
}

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
    return mixed(static_cast<W>(top_left[at]), static_cast<W>(top_right[at]), static_cast<W>(bottom_left[at]),
                 static_cast<W>(bottom_right[at]), lower, across);
  }
};

// The first of the cells along an axis that pixels use, and how many.
struct Span {
  int64_t first;
  int count;
};

__device__ __forceinline__ Span cells_of(int64_t begin, int64_t end, int64_t size, float scale) {
  const int64_t first = source_tap(begin, size, scale).first;
  return {first, static_cast<int>(source_tap(end - 1, size, scale).second - first) + 1};
}

// `classes` logits from class `c` on, of rows x columns cells, `pitch` apart; neighbouring threads read
// neighbours.
template <class T, class W>
__device__ __forceinline__ void fill_tile(const T* logits, const Shape& shape, const Span& rows, const Span& columns,
                                          int64_t c, int classes, int pitch, W* tile) {
  const T* corner = logits + c * shape.class_stride + rows.first * shape.row_stride;
  corner += columns.first * shape.column_stride;
  const int cells = rows.count * columns.count, t = static_cast<int>(threadIdx.x);
  if (shape.class_stride == 1) {
    // `lanes` threads a cell; the loads of four cells are under way together
    constexpr int kBatch = 4;
    const int lanes = classes < 32 ? kClasses : 32, step = kTileThreads / lanes;
    for (int cell = t / lanes; cell < cells; cell += kBatch * step) {
      const T* from[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int at = cell + u * step < cells ? cell + u * step : cell;
        from[u] = corner + at / columns.count * shape.row_stride + at % columns.count * shape.column_stride;
      }
      for (int k = t % lanes; k < classes; k += lanes) {
        T values[kBatch];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) values[u] = from[u][k];
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          if (cell + u * step < cells) tile[(cell + u * step) * pitch + k] = static_cast<W>(values[u]);
        }
      }
    }
    return;
  }
  for (int e = t; e < cells * classes; e += kTileThreads) {
    const int cell = e % cells, k = e / cells, row = cell / columns.count, column = cell % columns.count;
    tile[cell * pitch + k] =
        static_cast<W>(corner[k * shape.class_stride + row * shape.row_stride + column * shape.column_stride]);
  }
}

// A block has the logits of kTileRows x kTileColumns pixels in its shared memory, of `some` classes at once. An odd pitch
// keeps the cells of a class in different banks.
template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    ohem_entropies(const T* logits, Shape shape, float scale_y, float scale_x, const int64_t* target, int64_t height,
                   int64_t width, int some, wide_t<T>* entropy, wide_t<T>* normaliser) {
  using W = wide_t<T>;
  __shared__ W tile[kTileLogits<wide_t<T>>];
  const int64_t across = (width + kTileColumns - 1) / kTileColumns;
  const int64_t oy = blockIdx.x / across * kTileRows, ox = blockIdx.x % across * kTileColumns;
  const Span rows = cells_of(oy, oy + kTileRows < height ? oy + kTileRows : height, shape.height, scale_y);
  const Span columns = cells_of(ox, ox + kTileColumns < width ? ox + kTileColumns : width, shape.width, scale_x);
  const int64_t my_y = oy + threadIdx.x / kTileColumns, my_x = ox + threadIdx.x % kTileColumns;
  const bool inside = my_y < height && my_x < width;
  const int64_t i = my_y * width + my_x, k = inside ? target[i] : -1;
  const bool valid = k >= 0 && k < shape.classes && k != kVoidClass;
  const int pitch = some | 1;
  const Shape in_tile = {some, rows.count, columns.count, 1, int64_t{1} * columns.count * pitch, pitch};
  Tap y = source_tap(inside ? my_y : oy, shape.height, scale_y), x = source_tap(inside ? my_x : ox, shape.width, scale_x);
  y.first -= rows.first;
  y.second -= rows.first;
  x.first -= columns.first;
  x.second -= columns.first;
  const Sampler<W> sampler(tile, in_tile, y, x);
  W highest = -static_cast<W>(INFINITY), own = 0, sum = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t c = 0; c < shape.classes; c += some) {
      const int here = shape.classes - c < some ? static_cast<int>(shape.classes - c) : some;
      if (pass == 0 || some < shape.classes) {
        __syncthreads();
        fill_tile(logits, shape, rows, columns, c, here, pitch, tile);
        __syncthreads();
      }
      if (!valid) continue;
      if (pass == 1) {
        for (int j = 0; j < here; ++j) sum += std::exp(sampler.score(j) - highest);
        continue;
      }
      for (int j = 0; j < here; ++j) {
        const W score = sampler.score(j);
        highest = score > highest ? score : highest;
      }
      if (k >= c && k < c + here) own = sampler.score(static_cast<int>(k - c));
    }
  }
  if (!inside) return;
  const W log_sum = std::log(sum);
  entropy[i] = valid ? (highest - own) + log_sum : 0;
  normaliser[i] = valid ? highest + log_sum : static_cast<W>(INFINITY);
}

// The same without a tile, a thread a pixel: for logits so much larger than the image that the tile would not fit.
template <class T>
__global__ void ohem_entropies_directly(const T* logits, Shape shape, float scale_y, float scale_x,
                                        const int64_t* target, int64_t height, int64_t width, wide_t<T>* entropy,
                                        wide_t<T>* normaliser) {
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

constexpr int kCells = 8;  // most cells of a tile along an axis
constexpr int kSide = 48;  // most pixels of it
template <class W>
constexpr int kTilePixels = 6144 / sizeof(W);

// Where the pixels of a tile lie along an axis: offsets of the two cells of each, the weight of the second, and for each
// cell the pixels that reach it, with their weights.
template <class W>
struct Axis {
  int first[kSide], second[kSide];
  W weight[kSide], reach[kCells][kSide];
  int begin[kCells], end[kCells];
};

// The pixels that reach the cells from k to last, without the slack of `reached`.
__device__ __forceinline__ void reached_exactly(int64_t k, int64_t last, int64_t size, float scale, int64_t valid,
                                                int64_t& begin, int64_t& end) {
  int64_t unused;
  reached(k, size, scale, valid, begin, unused);
  reached(last, size, scale, valid, unused, end);
  if (end < begin) end = begin;  // cells of the padding
  while (begin < end && source_tap(begin, size, scale).second < k) ++begin;
  while (begin < end && source_tap(end - 1, size, scale).first > last) --end;
}

// Fills the axis with all threads for `cells` cells from k on; returns the pixels, and in `span` the cells they use.
template <class W>
__device__ __forceinline__ Span fill_axis(int64_t k, int cells, int64_t size, float scale, int64_t valid, Span& span,
                                          Axis<W>& axis) {
  const int64_t last = k + cells < size ? k + cells - 1 : size - 1;
  int64_t begin, end;
  reached_exactly(k, last, size, scale, valid, begin, end);
  span = begin < end ? cells_of(begin, end, size, scale) : Span{k, 0};
  const int t = threadIdx.x;
  if (begin + t < end) {
    const Tap tap = source_tap(begin + t, size, scale);
    axis.first[t] = static_cast<int>(tap.first - span.first);
    axis.second[t] = static_cast<int>(tap.second - span.first);
    axis.weight[t] = tap.weight;
    for (int cell = 0; cell < cells; ++cell) axis.reach[cell][t] = reach<W>(tap, k + cell);
  }
  if (k + t <= last) {
    int64_t from, to;
    reached_exactly(k + t, k + t, size, scale, valid, from, to);
    axis.begin[t] = static_cast<int>(from - begin);
    axis.end[t] = static_cast<int>(to - begin);
  }
  return {begin, static_cast<int>(end - begin)};
}

// The gradients of cells x cells logits and kClasses classes at once, as often as there are classes: what each pixel
// around them gives (probability - own), added up down the columns and then along the rows, in one order. Blocks of x are
// tiles, those of y share the classes.
template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    ohem_gradient(const T* logits, Shape shape, float scale_y, float scale_x, const int64_t* target,
                  const wide_t<T>* normaliser, const wide_t<T>* grad, int64_t count, int64_t height, int64_t width,
                  int cells, wide_t<T>* gradient) {
  using W = wide_t<T>;
  constexpr int kPitch = kClasses + 1, kUsed = kCells + 2;
  __shared__ W tile[kUsed * kUsed * kPitch], given[kClasses * kTilePixels<wide_t<T>>];
  __shared__ W columns_of[kClasses * kCells * kSide];
  __shared__ Axis<wide_t<T>> down, across;
  const int64_t tiles = (shape.width + cells - 1) / cells;
  const int64_t row = blockIdx.x / tiles * cells, column = blockIdx.x % tiles * cells;
  Span cell_rows, cell_columns;
  const Span rows = fill_axis(row, cells, shape.height, scale_y, height, cell_rows, down);
  const Span columns = fill_axis(column, cells, shape.width, scale_x, width, cell_columns, across);
  const int pixels = rows.count * columns.count;
  const auto wide = static_cast<unsigned>(columns.count);
  const W share = *grad / static_cast<W>(count);
  for (int64_t c = int64_t{kClasses} * blockIdx.y; c < shape.classes; c += int64_t{kClasses} * gridDim.y) {
    const int here = shape.classes - c < kClasses ? static_cast<int>(shape.classes - c) : kClasses;
    __syncthreads();
    fill_tile(logits, shape, cell_rows, cell_columns, c, here, kPitch, tile);
    __syncthreads();
    for (int p = threadIdx.x; p < pixels; p += kTileThreads) {
      const unsigned py = static_cast<unsigned>(p) / wide, px = static_cast<unsigned>(p) % wide;
      const int64_t i = (rows.first + py) * width + columns.first + px;
      const W n = normaliser[i];
      if (n == static_cast<W>(INFINITY)) {
        for (int k = 0; k < kClasses; ++k) given[k * pixels + p] = 0;
        continue;
      }
      const int64_t own = target[i];
      const int top = down.first[py] * cell_columns.count, bottom = down.second[py] * cell_columns.count;
      const int left = across.first[px], right = across.second[px];
      for (int k = 0; k < here; ++k) {
        const W score =
            mixed(tile[(top + left) * kPitch + k], tile[(top + right) * kPitch + k], tile[(bottom + left) * kPitch + k],
                  tile[(bottom + right) * kPitch + k], down.weight[py], across.weight[px]);
        given[k * pixels + p] = std::exp(score - n) - (own == c + k ? W(1) : W(0));
      }
    }
    __syncthreads();
    for (unsigned e = threadIdx.x; e < here * cells * wide; e += kTileThreads) {
      const unsigned px = e % wide, cell = e / wide % cells, k = e / wide / cells;
      W sum = 0;
      if (row + cell < shape.height) {
        const W* values = given + k * pixels + px;
        for (int py = down.begin[cell]; py < down.end[cell]; ++py) {
          const W weight = down.reach[cell][py];
          if (weight != 0) sum += weight * values[py * wide];
        }
      }
      columns_of[e] = sum;
    }
    __syncthreads();
    for (unsigned e = threadIdx.x; e < static_cast<unsigned>(here * cells * cells); e += kTileThreads) {
      const unsigned x = e % cells, y = e / cells % cells, k = e / cells / cells;
      if (row + y >= shape.height || column + x >= shape.width) continue;
      const W* sums = columns_of + (k * cells + y) * wide;
      W sum = 0;
      for (int px = across.begin[x]; px < across.end[x]; ++px) {
        const W weight = across.reach[x][px];
        if (weight != 0) sum += weight * sums[px];
      }
      gradient[((c + k) * shape.height + row + y) * shape.width + column + x] = sum * share;
    }
  }
}

// The same without a tile: a thread gathers the gradient of one logit from the pixels around it, in one order.
// Neighbouring threads take neighbouring classes where the classes of a pixel lie beside each other, neighbouring columns
// otherwise.
template <class T>
__global__ void ohem_gradient_directly(const T* logits, Shape shape, float scale_y, float scale_x, const int64_t* target,
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
