// Bilinear upsampling (align_corners off): where an output pixel lies among the source pixels of an axis.
#pragma once

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

// The product of two floats is exact in double, so it is rounded once and no compiler can fuse it with the sum: taps are
// the same to the bit on every processor, and in plain torch.
SEAMSEG_HD Tap source_tap(int64_t i, int64_t size, float scale) {
  const double product = static_cast<double>(static_cast<float>(i) + 0.5f) * static_cast<double>(scale);
  float position = static_cast<float>(product) - 0.5f;
  if (position < 0.0f) position = 0.0f;
  auto first = static_cast<int64_t>(position);
  if (first > size - 1) first = size - 1;
  const int64_t second = first + 1 < size ? first + 1 : size - 1;
  return {first, second, position - static_cast<float>(first)};
}

// wa * a + wb * b, products rounded before they are added. The host compiler gets a flag for this.
SEAMSEG_HD float mix(float wa, float a, float wb, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(__fmul_rn(wa, a), __fmul_rn(wb, b));
#else
  return wa * a + wb * b;
#endif
}
SEAMSEG_HD double mix(double wa, double a, double wb, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(__dmul_rn(wa, a), __dmul_rn(wb, b));
#else
  return wa * a + wb * b;
#endif
}

}  // namespace seamseg::upsampling
