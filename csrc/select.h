// Losses as whole numbers in the same order, so that the k-th largest can be found digit by digit.
#pragma once

#include <cstring>

#include "types.h"

namespace seamseg {

template <class W>
struct Order;
template <>
struct Order<float> {
  using key = uint32_t;
};
template <>
struct Order<double> {
  using key = uint64_t;
};

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;

// Rises with x; NaN is above all, as in torch.topk.
template <class W>
SEAMSEG_HD typename Order<W>::key order_key(W x) {
  using K = typename Order<W>::key;
  constexpr K sign = K{1} << (8 * sizeof(K) - 1);
  if (x != x) return ~K{0};
  K bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & sign ? static_cast<K>(~bits) : static_cast<K>(bits | sign);
}

template <class W>
SEAMSEG_HD W from_order_key(typename Order<W>::key key) {
  using K = typename Order<W>::key;
  constexpr K sign = K{1} << (8 * sizeof(K) - 1);
  const K bits = key & sign ? static_cast<K>(key ^ sign) : static_cast<K>(~key);
  W x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace seamseg
