// What every CPU kernel needs: element types, loads and stores that compute in float, clones for the processor at hand.
#pragma once

#include <cstring>

#include "../compilers.h"
#include "../tensor.h"

namespace seamseg {

SEAMSEG_INLINE float load(const float* p) { return *p; }
SEAMSEG_INLINE double load(const double* p) { return *p; }
SEAMSEG_INLINE float load(const Half* p) { return static_cast<float>(*p); }
SEAMSEG_INLINE float load(const BFloat16* p) {
  const uint32_t bits = static_cast<uint32_t>(p->x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

SEAMSEG_INLINE void store(float* p, float value) { *p = value; }
SEAMSEG_INLINE void store(double* p, double value) { *p = value; }
SEAMSEG_INLINE void store(Half* p, float value) { *p = static_cast<Half>(value); }
SEAMSEG_INLINE void store(BFloat16* p, float value) {
  // round to nearest even without a branch, so that the loop around it becomes vectors
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  p->x = value != value ? uint16_t{0x7fc0} : static_cast<uint16_t>(rounded);
}

}  // namespace seamseg
