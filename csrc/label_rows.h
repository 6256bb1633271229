// Loops over label and id maps on the CPU: counts, boxes, ids for free pixels. Shared by the operators of LibTorch and by
// the C library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "compilers.h"

namespace seamseg {
namespace {

// Neighbours mostly carry one label: counted in tables of their own they do not wait for each other.
constexpr int64_t kTables = 4;

// The row of the table for a label: its own, or n for those that are not counted.
template <class Label>
SEAMSEG_INLINE int64_t place_of(Label label, int64_t n) {
  return static_cast<uint64_t>(static_cast<int64_t>(label)) < static_cast<uint64_t>(n) ? static_cast<int64_t>(label) : n;
}

// counts: (n + 1) x kTables
template <class Label, class Id>
void count_range(const Label* labels, const Id* ids, int64_t begin, int64_t end, int64_t n, int64_t* counts) {
  for (int64_t i = begin; i < end; ++i) {
    counts[place_of(labels[i], n) * kTables + i % kTables] += ids == nullptr || ids[i] == 0;
  }
}

template <class Id, class Label>
SEAMSEG_CLONES void fill_range(Id* SEAMSEG_RESTRICT ids, const Label* SEAMSEG_RESTRICT labels, int64_t count,
                               const Id* SEAMSEG_RESTRICT table, int64_t n) {
  for (int64_t i = 0; i < count; ++i) {
    const Id id = table[place_of(labels[i], n)];
    ids[i] = ids[i] == 0 ? id : ids[i];
  }
}

struct Extent {
  int32_t y0 = std::numeric_limits<int32_t>::max(), x0 = y0, y1 = -1, x1 = -1;

  void add(int32_t top, int32_t left, int32_t bottom, int32_t right) {
    y0 = std::min(y0, top);
    x0 = std::min(x0, left);
    y1 = std::max(y1, bottom);
    x1 = std::max(x1, right);
  }
};

// Length of the run of equal ids that starts at p; the loop over blocks becomes vector compares.
template <class T>
SEAMSEG_CLONES int64_t run_length(const T* SEAMSEG_RESTRICT p, int64_t left) {
  constexpr int64_t kBlock = 64;
  const T id = p[0];
  int64_t length = 1;
  for (; length + kBlock <= left; length += kBlock) {
    T differ = 0;
    for (int64_t i = 0; i < kBlock; ++i) differ |= static_cast<T>(p[length + i] ^ id);
    if (differ != 0) break;
  }
  while (length < left && p[length] == id) ++length;
  return length;
}

template <class T>
void extract_rows(const T* ids, int64_t begin, int64_t end, int64_t height, int64_t width, std::vector<Extent>& out,
                  int64_t* areas = nullptr) {
  const int64_t n = static_cast<int64_t>(out.size());
  for (int64_t row = begin; row < end; ++row) {
    const T* line = ids + row * width;
    const auto y = static_cast<int32_t>(row % height);
    for (int64_t x = 0; x < width;) {
      const int64_t length = run_length(line + x, width - x);
      const auto id = static_cast<int64_t>(line[x]);
      if (id >= 0 && id < n) {
        out[id].add(y, static_cast<int32_t>(x), y + 1, static_cast<int32_t>(x + length));
        if (areas != nullptr) areas[id] += length;
      }
      x += length;
    }
  }
}

// The corners of an extent, -1 if it is empty.
SEAMSEG_INLINE void write_box(const Extent& e, float* out) {
  const int32_t corners[4] = {e.y0, e.x0, e.y1, e.x1};
  for (int k = 0; k < 4; ++k) out[k] = e.y1 < 0 ? -1.0f : static_cast<float>(corners[k]);
}

}  // namespace
}  // namespace seamseg
