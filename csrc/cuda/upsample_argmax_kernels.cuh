// The best class of each pixel of upsampled logits; see csrc/cpu/upsample_argmax.cpp for why agreeing corners suffice.
#pragma once

#include "../upsample.h"
#include "device.cuh"

namespace seamseg::upsampling {

// NaN is above all numbers, as in torch; the first of equals stays.
template <class W>
__device__ __forceinline__ bool above(W value, W best) {
  return value > best || (value != value && best == best);
}

// The best class of every pixel of the logits: height x width.
template <class T>
__global__ void best_of_source(const T* logits, Shape shape, int32_t* out) {
  using W = wide_t<T>;
  const int64_t count = shape.height * shape.width;
  for (int64_t i = grid_start(); i < count; i += grid_step()) {
    const T* p = logits + i / shape.width * shape.row_stride + i % shape.width * shape.column_stride;
    W best = static_cast<W>(p[0]);
    int32_t index = 0;
    for (int64_t c = 1; c < shape.classes; ++c) {
      const W value = static_cast<W>(p[c * shape.class_stride]);
      if (above(value, best)) {
        best = value;
        index = static_cast<int32_t>(c);
      }
    }
    out[i] = index;
  }
}

template <class T>
__global__ void best_of_pixels(const T* logits, Shape shape, float scale_y, float scale_x, const int32_t* source,
                               int64_t height, int64_t width, int64_t* out) {
  using W = wide_t<T>;
  for (int64_t i = grid_start(); i < height * width; i += grid_step()) {
    const Tap y = source_tap(i / width, shape.height, scale_y), x = source_tap(i % width, shape.width, scale_x);
    int32_t index = source[y.first * shape.width + x.first];
    const bool agree = index == source[y.first * shape.width + x.second] &&
                       index == source[y.second * shape.width + x.first] &&
                       index == source[y.second * shape.width + x.second];
    if (!agree) {
      const T* top = logits + y.first * shape.row_stride;
      const T* bottom = logits + y.second * shape.row_stride;
      const int64_t left = x.first * shape.column_stride, right = x.second * shape.column_stride;
      const W lower = y.weight, upper = 1 - lower, across = x.weight, rest = 1 - across;
      W best = 0;
      for (int64_t c = 0; c < shape.classes; ++c) {
        const int64_t at = c * shape.class_stride;
        const W start = mix(upper, static_cast<W>(top[at + left]), lower, static_cast<W>(bottom[at + left]));
        const W stop = mix(upper, static_cast<W>(top[at + right]), lower, static_cast<W>(bottom[at + right]));
        const W value = mix(rest, start, across, stop);
        if (c == 0 || above(value, best)) {
          best = value;
          index = static_cast<int32_t>(c);
        }
      }
    }
    out[i] = index;
  }
}

}  // namespace seamseg::upsampling
