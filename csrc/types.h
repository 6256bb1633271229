// Element types of the kernels, for the host and the device.
#pragma once

#include <cstdint>

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "compilers.h"

namespace seamseg {

using BFloat16 = c10::BFloat16;
using Half = c10::Half;

// Sums and products of half precision are made in float; float and double stay what they are.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};
template <class T>
using wide_t = typename Wide<T>::type;

}  // namespace seamseg
