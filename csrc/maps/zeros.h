// Looking for the few bytes that are not zero.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "../compilers.h"

namespace seamseg {

SEAMSEG_INLINE uint64_t word_at(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// 64 bytes.
SEAMSEG_INLINE bool all_zero(const uint8_t* p) {
  return (word_at(p) | word_at(p + 8) | word_at(p + 16) | word_at(p + 24) | word_at(p + 32) | word_at(p + 40) |
          word_at(p + 48) | word_at(p + 56)) == 0;
}

// Where the next byte that is not zero is, from i on, or `end`.
inline int64_t next_nonzero(const uint8_t* p, int64_t i, int64_t end) {
  while (i + 64 <= end && all_zero(p + i)) i += 64;
  for (; i + 8 <= end; i += 8) {
    const uint64_t word = word_at(p + i);
    if (word == 0) continue;
    return i + (std::endian::native == std::endian::little ? std::countr_zero(word) : std::countl_zero(word)) / 8;
  }
  while (i < end && p[i] == 0) ++i;
  return i;
}

}  // namespace seamseg
