// In-place ABN on the device: sums per channel in two stages, of which the second has a fixed order (so that results
// repeat), and walks that touch every element once.
#pragma once

#include "../abn_layout.h"
#include "../activation.h"
#include "device.cuh"

namespace seamseg::abn {

constexpr int kThreads = 256;
constexpr int kLanes = 32;                  // channels beside each other that a block of a channels-last map takes
constexpr int kRows = kThreads / kLanes;  // rows of it at once

// Welford 1962 for one value, Chan et al. 1979 for two parts.
template <class W>
struct Moments {
  W count = 0, mean = 0, squares = 0;

  __device__ __forceinline__ void add(W value) {
    count += W(1);
    const W difference = value - mean;
    mean += difference / count;
    squares += difference * (value - mean);
  }
  __device__ __forceinline__ void join(W n, W m, W s) {
    if (n == W(0)) return;
    const W total = count + n, difference = m - mean;
    mean += difference * n / total;
    squares += s + difference * difference * count * n / total;
    count = total;
  }
};

// What a first-stage block works on. Channels last: 32 channels (x) of a chunk of rows (y), a channel for each lane of a
// warp and a row for each warp. Planes: one channel (x), every gridDim.y-th stretch of its pixels.
// f(element index) is called for each element of this thread; the thread's channel is the result (-1: none).
template <class F>
__device__ __forceinline__ int64_t visit(const Layout& layout, F f) {
  if (layout.rows) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x % kLanes;
    if (c >= layout.channels) return -1;
    const int64_t step = static_cast<int64_t>(gridDim.y) * kRows;
    for (int64_t r = static_cast<int64_t>(blockIdx.y) * kRows + threadIdx.x / kLanes; r < layout.outer; r += step) {
      f(r * layout.channels + c);
    }
    return c;
  }
  const int64_t c = blockIdx.x, count = layout.outer * layout.inner;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < count; i += step) {
    f((i / layout.inner * layout.channels + c) * layout.inner + i % layout.inner);
  }
  return c;
}

// partial: gridDim.y x 3 x channels (count, mean, squares).
template <class T>
__global__ void statistics_partial(const T* x, Layout layout, wide_t<T>* partial) {
  using W = wide_t<T>;
  __shared__ W counts[kThreads], means[kThreads], squares[kThreads];
  Moments<W> own;
  const int64_t c = visit(layout, [&](int64_t i) { own.add(static_cast<W>(x[i])); });
  const int t = threadIdx.x;
  counts[t] = own.count;
  means[t] = own.mean;
  squares[t] = own.squares;
  // threads of one channel are `lanes` apart: their results halve in number until the first `lanes` hold everything
  const int lanes = layout.rows ? kLanes : 1;
  for (int half = kThreads / 2; half >= lanes; half /= 2) {
    __syncthreads();
    if (t < half) {
      Moments<W> joint{counts[t], means[t], squares[t]};
      joint.join(counts[t + half], means[t + half], squares[t + half]);
      counts[t] = joint.count;
      means[t] = joint.mean;
      squares[t] = joint.squares;
    }
  }
  if (t < lanes && c >= 0) {
    W* out = partial + static_cast<int64_t>(blockIdx.y) * 3 * layout.channels + c;
    out[0] = counts[t];
    out[layout.channels] = means[t];
    out[2 * layout.channels] = squares[t];
  }
}

template <class W>
__global__ void statistics_join(const W* partial, int64_t parts, int64_t channels, W* mean, W* var) {
  for (int64_t c = grid_start(); c < channels; c += grid_step()) {
    Moments<W> all;
    for (int64_t p = 0; p < parts; ++p) {
      const W* own = partial + p * 3 * channels + c;
      all.join(own[0], own[channels], own[2 * channels]);
    }
    mean[c] = all.mean;
    var[c] = all.count > W(0) ? all.squares / all.count : W(0);
  }
}

template <class T, class A>
__global__ void transform(const T* x, const T* residual, T* y, int64_t count, Layout layout, const wide_t<T>* mean,
                          const wide_t<T>* scale, const wide_t<T>* bias, A activation) {
  using W = wide_t<T>;
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const int64_t c = layout.channel_of(i);
    W z = (static_cast<W>(x[i]) - mean[c]) * scale[c] + bias[c];
    if (residual != nullptr) z += static_cast<W>(residual[i]);
    y[i] = static_cast<T>(activation.apply(z));
  }
}

// partial: gridDim.y x 3 x channels, sums of dz, of dz (z - bias) and of act^-1(y)^2.
template <class T, class A>
__global__ void reduce_partial(const T* dy, const T* y, const T* residual, Layout layout, const wide_t<T>* bias,
                               A activation, wide_t<T>* partial) {
  using W = wide_t<T>;
  __shared__ W sums[kThreads], moments[kThreads], squares[kThreads];
  W sum = 0, moment = 0, square = 0;
  const int64_t c = visit(layout, [&](int64_t i) {
    const int64_t channel = layout.rows ? static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x % kLanes : blockIdx.x;
    const W out = static_cast<W>(y[i]);
    const W dz = static_cast<W>(dy[i]) * activation.slope_at(out);
    const W before = activation.invert(out);
    W z = before - bias[channel];
    if (residual != nullptr) z -= static_cast<W>(residual[i]);
    sum += dz;
    moment += dz * z;
    square += before * before;
  });
  const int t = threadIdx.x;
  sums[t] = sum;
  moments[t] = moment;
  squares[t] = square;
  const int lanes = layout.rows ? kLanes : 1;
  for (int half = kThreads / 2; half >= lanes; half /= 2) {
    __syncthreads();
    if (t < half) {
      sums[t] += sums[t + half];
      moments[t] += moments[t + half];
      squares[t] += squares[t + half];
    }
  }
  if (t < lanes && c >= 0) {
    W* out = partial + static_cast<int64_t>(blockIdx.y) * 3 * layout.channels + c;
    out[0] = sums[t];
    out[layout.channels] = moments[t];
    out[2 * layout.channels] = squares[t];
  }
}

template <class W>
__global__ void reduce_join(const W* partial, int64_t parts, int64_t channels, W* sum, W* moment, W* squares) {
  for (int64_t c = grid_start(); c < channels; c += grid_step()) {
    double total = 0, weighted = 0, squared = 0;
    for (int64_t p = 0; p < parts; ++p) {
      const W* own = partial + p * 3 * channels + c;
      total += own[0];
      weighted += own[channels];
      squared += own[2 * channels];
    }
    sum[c] = static_cast<W>(total);
    moment[c] = static_cast<W>(weighted);
    squares[c] = static_cast<W>(squared);
  }
}

template <class T, class A>
__global__ void backward_input(const T* dy, const T* y, const T* residual, T* dx, T* dresidual, int64_t count,
                               Layout layout, const wide_t<T>* bias, const wide_t<T>* scale, const wide_t<T>* offset,
                               const wide_t<T>* slope, A activation) {
  using W = wide_t<T>;
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const int64_t c = layout.channel_of(i);
    const W out = static_cast<W>(y[i]);
    const W dz = static_cast<W>(dy[i]) * activation.slope_at(out);
    W z = activation.invert(out) - bias[c];
    if (residual != nullptr) {
      z -= static_cast<W>(residual[i]);
      dresidual[i] = static_cast<T>(dz);
    }
    dx[i] = static_cast<T>(scale[c] * dz + (offset[c] + slope[c] * z));
  }
}

}  // namespace seamseg::abn
