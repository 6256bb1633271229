// How the ABN kernels share a tensor among threads.
#pragma once

#include <algorithm>

#include "../abn_arguments.h"
#include "common.h"

namespace seamseg::abn {

// Elements that a thread takes at least; also the size of the blocks whose partial sums are joined in a fixed order, so
// that results are the same for any number of threads. Half a megabyte of float: what a core's cache holds.
constexpr int64_t kBlock = 1 << 17;

// Channels whose sums are kept in registers while the rows of a block go by.
constexpr int kColumns = 64;

// f(block, first row, last row) for blocks of rows that do not depend on the number of threads.
inline int64_t block_rows(const Layout& layout) { return std::max<int64_t>(1, kBlock / std::max<int64_t>(1, layout.channels)); }
inline int64_t block_count(const Layout& layout) {
  const int64_t rows = block_rows(layout);
  return (layout.outer + rows - 1) / rows;
}
template <class F>
void for_row_blocks(const Layout& layout, F&& f) {
  const int64_t rows = block_rows(layout);
  torch::stable::parallel_for(0, block_count(layout), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      f(block, block * rows, std::min(layout.outer, (block + 1) * rows));
    }
  });
}

// f(c) for all channels, which the threads share.
template <class F>
void for_channels(const Layout& layout, F&& f) {
  const int64_t work = std::max<int64_t>(1, layout.outer * layout.inner);
  const int64_t grain = std::max<int64_t>(1, (kBlock / 4) / work);
  torch::stable::parallel_for(0, layout.channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

}  // namespace seamseg::abn
