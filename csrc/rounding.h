// Products that are rounded by themselves: no compiler fuses them with the sum that follows, as torch does not.
#pragma once

#include "compilers.h"

namespace seamseg {

#if defined(__CUDA_ARCH__) || defined(SEAMSEG_EMULATED)
SEAMSEG_HD float rounded_product(float a, float b) { return __fmul_rn(a, b); }
SEAMSEG_HD double rounded_product(double a, double b) { return __dmul_rn(a, b); }
// The same in loops that become vectors on the host, in files that include no_contraction.h.
SEAMSEG_HD float product(float a, float b) { return __fmul_rn(a, b); }
SEAMSEG_HD double product(double a, double b) { return __dmul_rn(a, b); }
#else
SEAMSEG_HD float rounded_product(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * b);  // exact in double
}
SEAMSEG_HD double rounded_product(double a, double b) {
  volatile double product = a * b;
  return product;
}
SEAMSEG_HD float product(float a, float b) { return a * b; }
SEAMSEG_HD double product(double a, double b) { return a * b; }
#endif

}  // namespace seamseg
