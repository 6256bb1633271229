// In-place ABN on the device: sums per channel in two stages, of which the second has a fixed order (so that results
// repeat), and walks that touch every element once.
#pragma once

#include "../abn_layout.h"
#include "../activation.h"
#include "device.cuh"

namespace seamseg::abn {

constexpr int kThreads = 256;
constexpr int kMostLanes = 32;    // threads beside each other in the rows of a channels-last map
constexpr int kJoinThreads = 64;  // a warp a channel
// Blocks that share a multiprocessor: as many as leave registers enough for a batch of loads.
template <class A>
constexpr int kResident = 3;
template <class W>
constexpr int kResident<ELU<W>> = 2;

// How a launch walks a map: `kVec` elements at once, which lie beside each other, in rows or planes.
template <int kVec, bool kPlanes>
struct Access {
  Layout layout;
  int lanes;  // a power of 2; 1 for planes
};

template <class T, int kVec>
struct alignas(sizeof(T) * kVec) Pack {
  T at[kVec];
};

template <class T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load(const T* p) {
  return *reinterpret_cast<const Pack<T, kVec>*>(p);
}

// A thread's way through the map, always in the same channels. Rows: `lanes` packs (x) of a chunk of rows (y). Planes:
// one channel (x), every gridDim.y-th stretch of its pixels, through all images.
template <int kVec, bool kPlanes>
struct Walk {
  static constexpr int kOwn = kPlanes ? 1 : kVec;  // channels of a thread
  int64_t at, step, left = 0;                      // element, and how many packs are left
  int64_t pixel = 0, pixel_step = 0, pixels = 0, skip = 0;
  int64_t channel;

  __device__ __forceinline__ explicit Walk(const Access<kVec, kPlanes>& access) {
    const Layout& layout = access.layout;
    const int rows = kThreads / access.lanes, lane = static_cast<int>(threadIdx.x) % access.lanes;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * rows + threadIdx.x / access.lanes;
    const int64_t jump = static_cast<int64_t>(gridDim.y) * rows;
    int64_t count = layout.outer;
    if constexpr (kPlanes) {
      channel = blockIdx.x;
      pixels = layout.inner / kVec;
      count *= pixels;
      pixel = first % pixels;
      pixel_step = jump % pixels;
      skip = (layout.channels - 1) * layout.inner;  // from the end of a plane to its channel in the next image
      at = (first / pixels * layout.channels + channel) * layout.inner + pixel * kVec;
      step = jump / pixels * layout.channels * layout.inner + pixel_step * kVec;
    } else {
      channel = (static_cast<int64_t>(blockIdx.x) * access.lanes + lane) * kVec;
      at = first * layout.channels + channel;
      step = jump * layout.channels;
    }
    if (channel < layout.channels && first < count) left = (count - first - 1) / jump + 1;
  }

  __device__ __forceinline__ int64_t next() {
    const int64_t here = at;
    at += step;
    if constexpr (kPlanes) {
      pixel += pixel_step;
      if (pixel >= pixels) {
        pixel -= pixels;
        at += skip;
      }
    }
    return here;
  }
};

template <int kCount>
struct Places {
  static constexpr int count = kCount;
  int64_t at[kCount];
};

template <class T, int kVec, int kCount>
__device__ __forceinline__ void load_all(Pack<T, kVec> (&packs)[kCount], const T* p, const Places<kCount>& places) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) packs[u] = load<T, kVec>(p + places.at[u]);
}

// f(places) for all packs of a thread, `kBatch` at once as long as there are as many: their loads are under way together.
template <int kBatch, class Walk, class F>
__device__ __forceinline__ void visit(Walk& walk, F f) {
  for (; walk.left >= kBatch; walk.left -= kBatch) {
    Places<kBatch> places;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) places.at[u] = walk.next();
    f(places);
  }
  for (; walk.left > 0; --walk.left) f(Places<1>{{walk.next()}});
}

// Two parts are joined as by Chan et al. 1979; the caller adds up the counts.
template <class W>
struct Moments {
  W count = 0, mean = 0, squares = 0;

  __device__ __forceinline__ void join(W n, W m, W s) {
    if (n == W(0)) return;
    const W share = n / (count + n), difference = m - mean;
    mean += difference * share;
    squares += s + difference * difference * (count * share);
  }
};

// partial: channels x 3 x gridDim.y (count, mean, squares).
template <int kVec, bool kPlanes, class T>
__global__ void __launch_bounds__(kThreads, kResident<void>)
    statistics_partial(Access<kVec, kPlanes> access, const T* x, wide_t<T>* partial) {
  using W = wide_t<T>;
  constexpr int kOwn = Walk<kVec, kPlanes>::kOwn, kShared = kVec / kOwn;
  __shared__ W counts[kThreads], means[kOwn][kThreads], squares[kOwn][kThreads];
  W count = 0, mean[kOwn] = {}, square[kOwn] = {};
  Walk<kVec, kPlanes> walk(access);
  visit<4>(walk, [&](const auto& places) {
    constexpr int kCount = std::remove_cvref_t<decltype(places)>::count, kValues = kCount * kShared;
    Pack<T, kVec> in[kCount];
    load_all(in, x, places);
    // the moments of these few, then those of all
    const W share = W(kValues) / (count + W(kValues)), weight = count * share;
    count += W(kValues);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      // as differences to the first: a constant has no variance, a mean far from 0 costs no bits
      const W first = static_cast<W>(in[0].at[k]);
      W values[kValues] = {}, sum = 0, spread = 0;
#pragma unroll
      for (int i = 1; i < kValues; ++i) {
        values[i] = static_cast<W>(in[i / kShared].at[k + i % kShared]) - first;
        sum += values[i];
      }
      const W few = sum * (W(1) / W(kValues));
#pragma unroll
      for (int i = 0; i < kValues; ++i) spread += (values[i] - few) * (values[i] - few);
      const W difference = (first - mean[k]) + few;
      mean[k] += difference * share;
      square[k] += spread + difference * difference * weight;
    }
  });
  const int t = threadIdx.x;
  counts[t] = count;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    means[k][t] = mean[k];
    squares[k][t] = square[k];
  }
  // threads of one channel are `lanes` apart: their results halve in number until the first `lanes` hold everything
  for (int half = kThreads / 2; half >= access.lanes; half /= 2) {
    __syncthreads();
    if (t < half) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        Moments<W> joint{counts[t], means[k][t], squares[k][t]};
        joint.join(counts[t + half], means[k][t + half], squares[k][t + half]);
        means[k][t] = joint.mean;
        squares[k][t] = joint.squares;
      }
      counts[t] += counts[t + half];
    }
  }
  if (t < access.lanes && walk.channel < access.layout.channels) {
    W* out = partial + walk.channel * 3 * gridDim.y + blockIdx.y;
#pragma unroll
    for (int k = 0; k < kOwn; ++k, out += 3 * gridDim.y) {
      out[0] = counts[t];
      out[gridDim.y] = means[k][t];
      out[2 * gridDim.y] = squares[k][t];
    }
  }
}

// A warp per channel: the mean of the means, relative to the first one, then the sum of squares about it, with no
// division per part.
template <class W>
__global__ void statistics_join(const W* partial, int64_t parts, int64_t channels, W* mean, W* var) {
  const int64_t c = grid_start() / 32;
  const int lane = threadIdx.x % 32;
  if (c >= channels) return;
  const W *counts = partial + c * 3 * parts, *means = counts + parts, *squares = means + parts;
  const W first = means[0];
  W count = 0, sum = 0, square = 0;
#pragma unroll 4
  for (int64_t p = lane; p < parts; p += 32) {
    count += counts[p];
    sum += counts[p] * (means[p] - first);
  }
  for (int half = 16; half > 0; half /= 2) {
    count += __shfl_xor_sync(0xffffffffu, count, half);
    sum += __shfl_xor_sync(0xffffffffu, sum, half);
  }
  const W beyond = count > W(0) ? sum / count : W(0);
#pragma unroll 4
  for (int64_t p = lane; p < parts; p += 32) {
    const W difference = (means[p] - first) - beyond;
    square += squares[p] + counts[p] * (difference * difference);
  }
  for (int half = 16; half > 0; half /= 2) square += __shfl_down_sync(0xffffffffu, square, half);
  if (lane != 0) return;
  mean[c] = first + beyond;
  var[c] = count > W(0) ? square / count : W(0);
}

// Values per channel of those of a thread.
template <int kOwn, class W>
__device__ __forceinline__ Pack<W, kOwn> own_channels(const W* values, int64_t channel) {
  Pack<W, kOwn> own;
  constexpr int kWide = 16 / sizeof(W);
  if constexpr (kOwn % kWide == 0) {
#pragma unroll
    for (int k = 0; k < kOwn; k += kWide) {
      const auto four = load<W, kWide>(values + channel + k);
#pragma unroll
      for (int j = 0; j < kWide; ++j) own.at[k + j] = four.at[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) own.at[k] = values[channel + k];
  }
  return own;
}

template <int kVec, bool kPlanes, class T, class A>
__global__ void __launch_bounds__(kThreads, kResident<A>)
    transform(Access<kVec, kPlanes> access, const T* x, const T* residual, T* y, const wide_t<T>* mean,
              const wide_t<T>* scale, const wide_t<T>* bias, A activation) {
  using W = wide_t<T>;
  Walk<kVec, kPlanes> walk(access);
  if (walk.left == 0) return;
  constexpr int kOwn = Walk<kVec, kPlanes>::kOwn;
  const auto m = own_channels<kOwn>(mean, walk.channel), s = own_channels<kOwn>(scale, walk.channel),
             b = own_channels<kOwn>(bias, walk.channel);
  visit<4>(walk, [&](const auto& places) {
    constexpr int kCount = std::remove_cvref_t<decltype(places)>::count;
    Pack<T, kVec> in[kCount], more[kCount];
    load_all(in, x, places);
    if (residual != nullptr) load_all(more, residual, places);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const int c = k % kOwn;
        W z = (static_cast<W>(in[u].at[k]) - m.at[c]) * s.at[c] + b.at[c];
        if (residual != nullptr) z += static_cast<W>(more[u].at[k]);
        in[u].at[k] = static_cast<T>(activation.apply(z));
      }
      *reinterpret_cast<Pack<T, kVec>*>(y + places.at[u]) = in[u];
    }
  });
}

// partial: channels x 3 x gridDim.y, sums of dz, of dz (z - bias) and of act^-1(y)^2.
template <int kVec, bool kPlanes, class T, class A>
__global__ void __launch_bounds__(kThreads, kResident<A>)
    reduce_partial(Access<kVec, kPlanes> access, const T* dy, const T* y, const T* residual, const wide_t<T>* bias,
                   A activation, wide_t<T>* partial) {
  using W = wide_t<T>;
  constexpr int kOwn = Walk<kVec, kPlanes>::kOwn;
  __shared__ W sums[kOwn][kThreads], moments[kOwn][kThreads], squares[kOwn][kThreads];
  W sum[kOwn] = {}, moment[kOwn] = {}, square[kOwn] = {};
  Walk<kVec, kPlanes> walk(access);
  if (walk.left > 0) {
    const auto b = own_channels<kOwn>(bias, walk.channel);
    visit<2>(walk, [&](const auto& places) {
      constexpr int kCount = std::remove_cvref_t<decltype(places)>::count;
      Pack<T, kVec> above[kCount], out[kCount], more[kCount];
      load_all(above, dy, places);
      load_all(out, y, places);
      if (residual != nullptr) load_all(more, residual, places);
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
#pragma unroll
        for (int k = 0; k < kVec; ++k) {
          const int c = k % kOwn;
          const W value = static_cast<W>(out[u].at[k]);
          const W dz = static_cast<W>(above[u].at[k]) * activation.slope_at(value);
          const W before = activation.invert(value);
          W z = before - b.at[c];
          if (residual != nullptr) z -= static_cast<W>(more[u].at[k]);
          sum[c] += dz;
          moment[c] += dz * z;
          square[c] += before * before;
        }
      }
    });
  }
  const int t = threadIdx.x;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    sums[k][t] = sum[k];
    moments[k][t] = moment[k];
    squares[k][t] = square[k];
  }
  for (int half = kThreads / 2; half >= access.lanes; half /= 2) {
    __syncthreads();
    if (t < half) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        sums[k][t] += sums[k][t + half];
        moments[k][t] += moments[k][t + half];
        squares[k][t] += squares[k][t + half];
      }
    }
  }
  if (t < access.lanes && walk.channel < access.layout.channels) {
    W* out = partial + walk.channel * 3 * gridDim.y + blockIdx.y;
#pragma unroll
    for (int k = 0; k < kOwn; ++k, out += 3 * gridDim.y) {
      out[0] = sums[k][t];
      out[gridDim.y] = moments[k][t];
      out[2 * gridDim.y] = squares[k][t];
    }
  }
}

// A warp a channel.
template <class W>
__global__ void reduce_join(const W* partial, int64_t parts, int64_t channels, W* sum, W* moment, W* squares) {
  const int64_t c = grid_start() / 32;
  const int lane = threadIdx.x % 32;
  if (c >= channels) return;
  const W* own = partial + c * 3 * parts;
  double total = 0, weighted = 0, squared = 0;
#pragma unroll 4
  for (int64_t p = lane; p < parts; p += 32) {
    total += own[p];
    weighted += own[parts + p];
    squared += own[2 * parts + p];
  }
  for (int half = 16; half > 0; half /= 2) {
    total += __shfl_down_sync(0xffffffffu, total, half);
    weighted += __shfl_down_sync(0xffffffffu, weighted, half);
    squared += __shfl_down_sync(0xffffffffu, squared, half);
  }
  if (lane != 0) return;
  sum[c] = static_cast<W>(total);
  moment[c] = static_cast<W>(weighted);
  squares[c] = static_cast<W>(squared);
}

template <int kVec, bool kPlanes, class T, class A>
__global__ void __launch_bounds__(kThreads, kResident<A>)
    backward_input(Access<kVec, kPlanes> access, const T* dy, const T* y, const T* residual, T* dx, T* dresidual,
                   const wide_t<T>* bias, const wide_t<T>* scale, const wide_t<T>* offset, const wide_t<T>* slope,
                   A activation) {
  using W = wide_t<T>;
  Walk<kVec, kPlanes> walk(access);
  if (walk.left == 0) return;
  constexpr int kOwn = Walk<kVec, kPlanes>::kOwn;
  const auto s = own_channels<kOwn>(scale, walk.channel), f = own_channels<kOwn>(slope, walk.channel);
  auto o = own_channels<kOwn>(offset, walk.channel);
  {
    const auto b = own_channels<kOwn>(bias, walk.channel);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) o.at[k] -= f.at[k] * b.at[k];
  }
  visit<2>(walk, [&](const auto& places) {
    constexpr int kCount = std::remove_cvref_t<decltype(places)>::count;
    Pack<T, kVec> above[kCount], out[kCount], more[kCount];
    load_all(above, dy, places);
    load_all(out, y, places);
    if (residual != nullptr) load_all(more, residual, places);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const int c = k % kOwn;
        const W value = static_cast<W>(out[u].at[k]);
        const W dz = static_cast<W>(above[u].at[k]) * activation.slope_at(value);
        W z = activation.invert(value);  // and the bias
        if (residual != nullptr) {
          z -= static_cast<W>(more[u].at[k]);
          more[u].at[k] = static_cast<T>(dz);
        }
        out[u].at[k] = static_cast<T>(s.at[c] * dz + (o.at[c] + f.at[c] * z));
      }
      *reinterpret_cast<Pack<T, kVec>*>(dx + places.at[u]) = out[u];
      if (residual != nullptr) *reinterpret_cast<Pack<T, kVec>*>(dresidual + places.at[u]) = more[u];
    }
  });
}

}  // namespace seamseg::abn
