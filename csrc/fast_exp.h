// e^x in float that loops over it become vectors of, within two units in the last place.
#pragma once

#include <cstdint>
#include <cstring>

#include "compilers.h"

namespace seamseg {

// For x up to 88; below -87 it stays at e^-87, NaN stays NaN.
SEAMSEG_INLINE float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  // adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits
  const float shifted = x * 1.44269504f + 12582912.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const float n = shifted - 12582912.0f;
  // ln 2 in two parts: the product with the first is exact
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float sum = 1.0f / 5040;
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const uint32_t exponent = (static_cast<uint32_t>(bits) + 127u) << 23;
  float power;
  std::memcpy(&power, &exponent, sizeof power);
  return sum * power;
}

}  // namespace seamseg
