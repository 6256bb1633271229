// How the ABN kernels see a tensor `N x C x ...`, and how they share it among threads.
#pragma once

#include <algorithm>

#include "../activation.h"
#include "common.h"

namespace seamseg::abn {

// Either rows of C channels (channels last, or no further dimensions) or planes of `inner` pixels of one channel.
struct Layout {
  int64_t outer, channels, inner;
  bool rows;
};

inline Layout layout_of(const Tensor& x, const char* op) {
  STD_TORCH_CHECK(x.dim() >= 2, op, ": expected N x C x ..., got ", x.dim(), " dimensions");
  int64_t inner = 1;
  for (int64_t i = 2; i < x.dim(); ++i) inner *= x.size(i);
  if (inner <= 1 && x.is_contiguous()) return {x.size(0) * inner, x.size(1), 1, true};
  if (is_channels_last(x)) return {x.size(0) * inner, x.size(1), 1, true};
  STD_TORCH_CHECK(x.is_contiguous(), op, ": expected a contiguous or channels_last tensor");
  return {x.size(0), x.size(1), inner, false};
}

inline void check_like(const Tensor& a, const Tensor& x, const char* op, const char* name) {
  bool same = a.dim() == x.dim() && a.scalar_type() == x.scalar_type() && a.is_cpu();
  for (int64_t i = 0; same && i < x.dim(); ++i) {
    same = a.size(i) == x.size(i) && (x.size(i) == 1 || a.stride(i) == x.stride(i));
  }
  STD_TORCH_CHECK(same || (a.numel() == 0 && x.numel() == 0), op, ": ", name,
                  " must have the shape, dtype, device and memory format of the input");
}

template <class W>
const W* per_channel(const Tensor& a, int64_t channels, const char* op, const char* name) {
  constexpr ScalarType type = sizeof(W) == 8 ? ScalarType::Double : ScalarType::Float;
  STD_TORCH_CHECK(a.dim() == 1 && a.size(0) == channels && a.is_contiguous() && a.scalar_type() == type && a.is_cpu(),
                  op, ": ", name, " must hold one ", sizeof(W) == 8 ? "float64" : "float32", " per channel (", channels,
                  ")");
  return data<W>(a);
}

template <class W, class F>
void with_activation(int64_t activation, double parameter, const char* op, F&& f) {
  switch (activation) {
    case kLeakyReLU:
      return f(LeakyReLU<W>(parameter));
    case kELU:
      return f(ELU<W>(parameter));
    default:
      STD_TORCH_CHECK(false, op, ": unknown activation ", activation);
  }
}

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

// f(n, c, offset of the plane) for all planes, threads over channels.
template <class F>
void for_channels(const Layout& layout, F&& f) {
  const int64_t work = std::max<int64_t>(1, layout.outer * layout.inner);
  const int64_t grain = std::max<int64_t>(1, (kBlock / 4) / work);
  torch::stable::parallel_for(0, layout.channels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

}  // namespace seamseg::abn
