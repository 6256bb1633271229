// ROI sampling on the device: a block takes some samples of one box, its threads the channels of these.
#pragma once

#include "../roi_sampling.h"
#include "device.cuh"

namespace seamseg {

constexpr int kRoiLevels = 16;   // most levels of a pyramid
constexpr int kRoiSamples = 32;  // samples of a block
constexpr int kRoiThreads = 256;

// The maps of a call; the type behind `data` is a template parameter of the kernels.
struct RoiPyramid {
  RoiMap maps[kRoiLevels];
  void* data[kRoiLevels];
  int64_t count;
};

template <class B>
struct RoiBoxes {
  const B* boxes;
  const int64_t* index;
  const int64_t* level;  // null: all on level 0
  int64_t count, channels;
  RoiGrid grid;
};

// The four pixels of a sample, as offsets into its level, and their weights; of a box that names no image: level -1.
template <class W>
struct RoiSample {
  int64_t offset[4];
  W weight[4];
  int level;
};

// The level of a box, or -1 if it names a level or an image that is not there: such a box reads 0 and gives nothing.
template <class B>
__device__ __forceinline__ int roi_level(const RoiPyramid& pyramid, const RoiBoxes<B>& call, int64_t box) {
  const int64_t level = call.level != nullptr ? call.level[box] : 0;
  if (level < 0 || level >= pyramid.count) return -1;
  const int64_t image = call.index[box];
  return image < 0 || image >= pyramid.maps[level].images ? -1 : static_cast<int>(level);
}

template <class W, class B>
__device__ __forceinline__ void roi_sample(const RoiPyramid& pyramid, const RoiBoxes<B>& call, int64_t box,
                                           int64_t point, RoiSample<W>& sample) {
  sample.level = roi_level(pyramid, call, box);
  if (sample.level < 0) return;
  const RoiMap& map = pyramid.maps[sample.level];
  const B* corners = call.boxes + 4 * box;
  const RoiTap<B> y = roi_tap_y(corners, point / call.grid.width, map, call.grid);
  const RoiTap<B> x = roi_tap_x(corners, point % call.grid.width, map, call.grid);
  const int64_t image = call.index[box] * map.stride_image;
  for (int k = 0; k < 4; ++k) {
    const int64_t row = k < 2 ? y.first : y.second, column = k % 2 == 0 ? x.first : x.second;
    sample.offset[k] = image + row * map.stride_row + column * map.stride_column;
    const B weight_y = k < 2 ? y.weight_first : y.weight_second;
    sample.weight[k] = static_cast<W>(weight_y * (k % 2 == 0 ? x.weight_first : x.weight_second));
  }
}

// Channels that are read and written in one piece.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) RoiPack {
  T values[kCount];
};

// Channels beside each other on every level, `kCount` of them a thread; out: samples x channels.
template <class T, class W, class B, int kCount>
__global__ void roi_forward_vectors(RoiPyramid pyramid, RoiBoxes<B> call, T* out) {
  using Pack = RoiPack<T, kCount>;
  __shared__ RoiSample<W> samples[kRoiSamples];
  const int64_t points = call.grid.height * call.grid.width, chunks = (points + kRoiSamples - 1) / kRoiSamples;
  const int64_t packs = call.channels / kCount;
  for (int64_t job = blockIdx.x; job < call.count * chunks; job += gridDim.x) {
    const int64_t box = job / chunks, begin = job % chunks * kRoiSamples;
    const int64_t here = points - begin < kRoiSamples ? points - begin : kRoiSamples;
    __syncthreads();
    if (threadIdx.x < here) roi_sample(pyramid, call, box, begin + threadIdx.x, samples[threadIdx.x]);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < here * packs; e += blockDim.x) {
      const RoiSample<W>& s = samples[e / packs];
      const int64_t channel = e % packs * kCount;
      Pack result;
      if (s.level < 0) {
        for (int k = 0; k < kCount; ++k) result.values[k] = static_cast<T>(0.0f);
      } else {
        const T* x = static_cast<const T*>(pyramid.data[s.level]) + channel;
        W sums[kCount];
        for (int k = 0; k < kCount; ++k) sums[k] = 0;
        for (int tap = 0; tap < 4; ++tap) {
          const Pack pixel = *reinterpret_cast<const Pack*>(x + s.offset[tap]);
          for (int k = 0; k < kCount; ++k) sums[k] += s.weight[tap] * static_cast<W>(pixel.values[k]);
        }
        for (int k = 0; k < kCount; ++k) result.values[k] = static_cast<T>(sums[k]);
      }
      *reinterpret_cast<Pack*>(out + (box * points + begin + e / packs) * call.channels + channel) = result;
    }
  }
}

// Any strides: neighbouring threads read neighbouring samples of a plane, and write neighbouring channels of a sample.
template <class T, class W, class B>
__global__ void roi_forward_planes(RoiPyramid pyramid, RoiBoxes<B> call, T* out) {
  __shared__ RoiSample<W> samples[kRoiSamples];
  __shared__ W tile[kRoiSamples][kRoiSamples + 1];
  const int64_t points = call.grid.height * call.grid.width, chunks = (points + kRoiSamples - 1) / kRoiSamples;
  const int lane = threadIdx.x % kRoiSamples, line = threadIdx.x / kRoiSamples, lines = blockDim.x / kRoiSamples;
  for (int64_t job = blockIdx.x; job < call.count * chunks; job += gridDim.x) {
    const int64_t box = job / chunks, begin = job % chunks * kRoiSamples;
    const int64_t here = points - begin < kRoiSamples ? points - begin : kRoiSamples;
    __syncthreads();
    if (threadIdx.x < here) roi_sample(pyramid, call, box, begin + threadIdx.x, samples[threadIdx.x]);
    for (int64_t first = 0; first < call.channels; first += kRoiSamples) {
      __syncthreads();
      for (int c = line; c < kRoiSamples; c += lines) {
        if (lane >= here || first + c >= call.channels) continue;
        const RoiSample<W>& s = samples[lane];
        W value = 0;
        if (s.level >= 0) {
          const RoiMap& map = pyramid.maps[s.level];
          const T* x = static_cast<const T*>(pyramid.data[s.level]) + (first + c) * map.stride_channel;
          for (int tap = 0; tap < 4; ++tap) value += s.weight[tap] * static_cast<W>(x[s.offset[tap]]);
        }
        tile[c][lane] = value;
      }
      __syncthreads();
      for (int i = line; i < here; i += lines) {
        if (first + lane >= call.channels) continue;
        out[(box * points + begin + i) * call.channels + first + lane] = static_cast<T>(tile[lane][i]);
      }
    }
  }
}

// Nearest neighbours are copied: any type, any strides.
template <class T, class B>
__global__ void roi_forward_nearest(RoiPyramid pyramid, RoiBoxes<B> call, T* out) {
  const int64_t points = call.grid.height * call.grid.width;
  for (int64_t e = grid_start(); e < call.count * points * call.channels; e += grid_step()) {
    const int64_t channel = e % call.channels, point = e / call.channels % points;
    RoiSample<float> s;
    roi_sample(pyramid, call, e / call.channels / points, point, s);
    T value = static_cast<T>(0);
    if (s.level >= 0 && s.weight[0] != 0) {
      const RoiMap& map = pyramid.maps[s.level];
      value = static_cast<const T*>(pyramid.data[s.level])[s.offset[0] + channel * map.stride_channel];
    }
    out[e] = value;
  }
}

// Backward, fast: every sample adds to its four pixels. The levels are sums in W, channels last, 0 before.
template <class T, class W, class B>
__global__ void roi_backward_scatter(RoiPyramid pyramid, RoiBoxes<B> call, const T* dy) {
  __shared__ RoiSample<W> samples[kRoiSamples];
  const int64_t points = call.grid.height * call.grid.width, chunks = (points + kRoiSamples - 1) / kRoiSamples;
  for (int64_t job = blockIdx.x; job < call.count * chunks; job += gridDim.x) {
    const int64_t box = job / chunks, begin = job % chunks * kRoiSamples;
    const int64_t here = points - begin < kRoiSamples ? points - begin : kRoiSamples;
    __syncthreads();
    if (threadIdx.x < here) roi_sample(pyramid, call, box, begin + threadIdx.x, samples[threadIdx.x]);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < here * call.channels; e += blockDim.x) {
      const RoiSample<W>& s = samples[e / call.channels];
      if (s.level < 0) continue;
      const W value = static_cast<W>(dy[(box * points + begin) * call.channels + e]);
      W* dx = static_cast<W*>(pyramid.data[s.level]) + e % call.channels;
      for (int tap = 0; tap < (call.grid.nearest ? 1 : 4); ++tap) atomicAdd(dx + s.offset[tap], s.weight[tap] * value);
    }
  }
}

// Backward, always the same: a block owns a row of a map and a thread channels of it; what reads the row is added in
// the order of the boxes.
template <class T, class W, class B>
__global__ void roi_backward_gather(RoiPyramid pyramid, RoiBoxes<B> call, int64_t rows, const T* dy) {
  __shared__ B weights[kRoiThreads][2];  // with which the row is either tap; 2 for a row that is not: none is above 1
  const int64_t readers = call.count * call.grid.height;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  for (int64_t job = blockIdx.x; job < rows; job += gridDim.x) {
    int64_t row = job;
    int level = 0;
    for (; row >= pyramid.maps[level].images * pyramid.maps[level].height; ++level) {
      row -= pyramid.maps[level].images * pyramid.maps[level].height;
    }
    const RoiMap& map = pyramid.maps[level];
    const int64_t image = row / map.height, y = row % map.height;
    W* dx = static_cast<W*>(pyramid.data[level]) + image * map.stride_image + y * map.stride_row + channel;
    for (int64_t first = 0; first < readers; first += blockDim.x) {
      const int64_t mine = first + threadIdx.x, box = mine / call.grid.height;
      B top = 2, bottom = 0;
      if (mine < readers && roi_level(pyramid, call, box) == level && call.index[box] == image) {
        const RoiTap<B> tap = roi_tap_y(call.boxes + 4 * box, mine % call.grid.height, map, call.grid);
        if (tap.first == y || tap.second == y) {
          top = tap.first == y ? tap.weight_first : B(0);
          bottom = tap.second == y ? tap.weight_second : B(0);
        }
      }
      __syncthreads();
      weights[threadIdx.x][0] = top;
      weights[threadIdx.x][1] = bottom;
      __syncthreads();
      const int64_t here = readers - first < blockDim.x ? readers - first : blockDim.x;
      for (int64_t i = 0; i < here && channel < call.channels; ++i) {
        if (weights[i][0] == 2) continue;
        const B* corners = call.boxes + 4 * ((first + i) / call.grid.height);
        const T* line = dy + (first + i) * call.grid.width * call.channels + channel;
        for (int64_t j = 0; j < call.grid.width; ++j) {
          const RoiTap<B> tap = roi_tap_x(corners, j, map, call.grid);
          const W value = static_cast<W>(line[j * call.channels]);
          for (int k = 0; k < 2; ++k) {
            dx[tap.first * map.stride_column] += static_cast<W>(weights[i][k] * tap.weight_first) * value;
            dx[tap.second * map.stride_column] += static_cast<W>(weights[i][k] * tap.weight_second) * value;
          }
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace seamseg
