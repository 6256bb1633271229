// Bilinear upsampling (align_corners off): where an output pixel lies among the source pixels of an axis.
#pragma once

#include "rounding.h"
#include "types.h"

namespace seamseg::upsampling {

// Sizes of C x h x w logits and where their elements are.
struct Shape {
  int64_t classes, height, width;
  int64_t class_stride, row_stride, column_stride;
};

struct Tap {
  int64_t first, second;
  float weight;  // of the second; the first has the rest
};

inline float source_scale(int64_t size, int64_t padded) {
  return static_cast<float>(static_cast<double>(size) / static_cast<double>(padded));
}

// Taps are the same to the bit on every processor, and in plain torch.
SEAMSEG_HD Tap source_tap(int64_t i, int64_t size, float scale) {
  float position = rounded_product(static_cast<float>(i) + 0.5f, scale) - 0.5f;
  if (position < 0.0f) position = 0.0f;
  auto first = static_cast<int64_t>(position);
  if (first > size - 1) first = size - 1;
  const int64_t second = first + 1 < size ? first + 1 : size - 1;
  return {first, second, position - static_cast<float>(first)};
}

// wa * a + wb * b, products rounded before they are added: on the host in files that include no_contraction.h.
template <class W>
SEAMSEG_HD W mix(W wa, W a, W wb, W b) {
  return product(wa, a) + product(wb, b);
}

}  // namespace seamseg::upsampling
