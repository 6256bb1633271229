// Undoing the row filters of PNG for pixels of three bytes. Maps of segments leave zeros almost everywhere; a stretch of
// zeros is a copy of the row above or of the pixel to the left, and only what is left over is computed.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "answer.h"
#include "zeros.h"

namespace seamseg {

constexpr int64_t kPixel = 3;

// Where the next pixel is that is not the one to its left, from i on, or `end`.
inline int64_t next_change(const uint8_t* p, int64_t i, int64_t end) {
  for (; i + 8 <= end; i += 8) {
    if (word_at(p + i) != word_at(p + i - kPixel)) break;
  }
  while (i < end && p[i] == p[i - kPixel]) ++i;
  return i;
}

inline bool same_pixel(const uint8_t* a, const uint8_t* b) { return a[0] == b[0] && a[1] == b[1] && a[2] == b[2]; }

inline void repeat_pixel(uint8_t* out, int64_t count) {
  for (int64_t distance = kPixel; count > 0; distance *= 2) {
    const int64_t now = std::min(count, distance);
    std::memcpy(out, out - distance, now);
    out += now;
    count -= now;
  }
}

inline uint8_t paeth(int a, int b, int c) {
  const int to_a = std::abs(b - c), to_b = std::abs(a - c), to_c = std::abs(a + b - 2 * c);
  return static_cast<uint8_t>(to_a <= to_b && to_a <= to_c ? a : to_b <= to_c ? b : c);
}

SEAMSEG_CLONES inline void add_rows(const uint8_t* SEAMSEG_RESTRICT f, const uint8_t* SEAMSEG_RESTRICT above,
                                    uint8_t* SEAMSEG_RESTRICT out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(f[i] + above[i]);
}

inline void undo_sub(const uint8_t* f, uint8_t* out, int64_t count) {
  for (int64_t i = 0; i < count;) {
    int64_t zeros = next_nonzero(f, i, count);
    zeros -= zeros % kPixel;
    repeat_pixel(out + i, zeros - i);
    i = zeros;
    if (i == count) return;
    for (const int64_t stop = i + kPixel; i < stop; ++i) out[i] = static_cast<uint8_t>(f[i] + out[i - kPixel]);
  }
}

// `zeros`: the first byte of f that is not zero.
inline void undo_paeth(const uint8_t* f, const uint8_t* above, uint8_t* out, int64_t count, int64_t zeros) {
  for (int64_t i = 0;; zeros = next_nonzero(f, i, count)) {
    zeros -= zeros % kPixel;
    while (i < zeros) {
      if (same_pixel(out + i - kPixel, above + i - kPixel)) {
        std::memcpy(out + i, above + i, zeros - i);
        i = zeros;
      } else if (same_pixel(above + i, above + i - kPixel)) {
        int64_t stop = next_change(above, i, zeros);
        stop -= stop % kPixel;
        repeat_pixel(out + i, stop - i);
        i = stop;
      } else {
        for (const int64_t stop = i + kPixel; i < stop; ++i) {
          out[i] = paeth(out[i - kPixel], above[i], above[i - kPixel]);
        }
      }
    }
    if (i == count) return;
    for (const int64_t stop = i + kPixel; i < stop; ++i) {
      out[i] = static_cast<uint8_t>(f[i] + paeth(out[i - kPixel], above[i], above[i - kPixel]));
    }
  }
}

// f: filtered row without its first byte; above and out have a pixel of zeros before them. True if the row is the one
// above, and then `out` is not written.
inline bool undo_filter(int filter, const uint8_t* f, const uint8_t* above, uint8_t* out, int64_t count) {
  const int64_t zeros = filter == 2 || filter == 4 ? next_nonzero(f, 0, count) : 0;
  if (zeros == count) return true;
  switch (filter) {
    case 0:
      std::memcpy(out, f, count);
      return false;
    case 1:
      undo_sub(f, out, count);
      return false;
    case 2:
      add_rows(f, above, out, count);
      return false;
    case 3:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(f[i] + (out[i - kPixel] + above[i]) / 2);
      return false;
    case 4:
      undo_paeth(f, above, out, count, zeros);
      return false;
    default:
      throw std::runtime_error("a row has an unknown filter");
  }
}

}  // namespace seamseg
