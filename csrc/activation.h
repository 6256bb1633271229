// The activations of in-place ABN: their value, and from the output alone their inverse and their slope.
#pragma once

#include <cmath>

#include "types.h"

namespace seamseg {

// What Python calls them. Identity is a leaky ReLU of slope 1, exactly.
enum Activation : int64_t { kLeakyReLU = 0, kELU = 1 };

template <class W>
struct LeakyReLU {
  W slope, inverse_slope;

  explicit LeakyReLU(double parameter) : slope(static_cast<W>(parameter)), inverse_slope(static_cast<W>(1 / parameter)) {}

  SEAMSEG_HD W apply(W z) const { return z > W(0) ? z : z * slope; }
  SEAMSEG_HD W invert(W y) const { return y > W(0) ? y : y * inverse_slope; }
  SEAMSEG_HD W slope_at(W y) const { return y > W(0) ? W(1) : slope; }
};

template <class W>
struct ELU {
  W alpha, inverse_alpha;

  explicit ELU(double parameter) : alpha(static_cast<W>(parameter)), inverse_alpha(static_cast<W>(1 / parameter)) {}

  SEAMSEG_HD W apply(W z) const { return z > W(0) ? z : alpha * std::expm1(z); }
  SEAMSEG_HD W invert(W y) const {
    // a saturated output (y = -alpha) stands for a large finite z; its slope is 0, so that it has no weight
    constexpr W kFloor = sizeof(W) == 8 ? W(2.220446049250313e-16 - 1) : W(1.1920929e-07 - 1);
    const W ratio = y * inverse_alpha;
    return y > W(0) ? y : std::log1p(ratio < kFloor ? kFloor : ratio);
  }
  SEAMSEG_HD W slope_at(W y) const { return y > W(0) ? W(1) : y + alpha; }
};

}  // namespace seamseg
