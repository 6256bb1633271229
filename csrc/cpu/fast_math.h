// exp and log that loops over them become vectors of: float within two units in the last place, double by the library.
#pragma once

#include <cmath>

#include "../fast_exp.h"
#include "common.h"

namespace seamseg {

SEAMSEG_INLINE double fast_exp(double x) { return std::exp(x); }

// ln x for normal x > 0; exactly 0 for 1, NaN stays NaN.
SEAMSEG_INLINE float fast_log(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  // x = m * 2^e with m from 0.707 to 1.414
  const uint32_t offset = bits - 0x3f3504f3u;
  const auto e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const uint32_t mantissa = (offset & 0x007fffffu) + 0x3f3504f3u;
  float m;
  std::memcpy(&m, &mantissa, sizeof m);
  const float z = (m - 1.0f) / (m + 1.0f), z2 = z * z;
  float sum = 1.0f / 9;
  sum = sum * z2 + 1.0f / 7;
  sum = sum * z2 + 1.0f / 5;
  sum = sum * z2 + 1.0f / 3;
  const float series = 2.0f * (z + z * z2 * sum);
  const float result = (series - e * 2.12194440e-4f) + e * 0.693359375f;
  return x == x ? result : x;
}
SEAMSEG_INLINE double fast_log(double x) { return std::log(x); }

}  // namespace seamseg
