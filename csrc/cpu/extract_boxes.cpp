// Bounding boxes of the ids of a map: one walk along its runs, rows shared among the threads.
#include <algorithm>
#include <limits>

#include "common.h"

namespace seamseg {
namespace {

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
void extract_rows(const T* ids, int64_t begin, int64_t end, int64_t height, int64_t width, std::vector<Extent>& out) {
  const int64_t n = static_cast<int64_t>(out.size());
  for (int64_t row = begin; row < end; ++row) {
    const T* line = ids + row * width;
    const auto y = static_cast<int32_t>(row % height);
    for (int64_t x = 0; x < width;) {
      const int64_t length = run_length(line + x, width - x);
      const auto id = static_cast<int64_t>(line[x]);
      if (id >= 0 && id < n) out[id].add(y, static_cast<int32_t>(x), y + 1, static_cast<int32_t>(x + length));
      x += length;
    }
  }
}

Tensor extract_boxes(const Tensor& id_map, int64_t n) {
  STD_TORCH_CHECK(id_map.dim() == 2 || id_map.dim() == 3, "extract_boxes: id_map must be H x W or L x H x W");
  STD_TORCH_CHECK(n >= 0, "extract_boxes: n must not be negative");
  const Tensor ids = torch::stable::contiguous(id_map);
  const int64_t height = ids.size(-2), width = ids.size(-1);
  const int64_t rows = width > 0 ? ids.numel() / width : 0;
  Tensor boxes = torch::stable::new_empty(ids, {n, 4}, ScalarType::Float);
  float* out = mutable_data<float>(boxes);

  // Every thread extends boxes of its own; they are joined in the order of the rows, though any order gives the same.
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(torch::stable::get_num_threads(), ids.numel() >> 15));
  std::vector<std::vector<Extent>> partial(parts, std::vector<Extent>(n));
  dispatch_integer(ids, "extract_boxes", [&](auto zero) {
    using T = decltype(zero);
    const T* source = data<T>(ids);
    torch::stable::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        extract_rows(source, rows * part / parts, rows * (part + 1) / parts, height, width, partial[part]);
      }
    });
  });
  for (int64_t id = 0; id < n; ++id) {
    Extent all;
    for (const auto& extents : partial) {
      const Extent& e = extents[id];
      if (e.y1 >= 0) all.add(e.y0, e.x0, e.y1, e.x1);
    }
    const bool absent = all.y1 < 0;
    const int32_t corners[4] = {all.y0, all.x0, all.y1, all.x1};
    for (int k = 0; k < 4; ++k) out[4 * id + k] = absent ? -1.0f : static_cast<float>(corners[k]);
  }
  return boxes;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("extract_boxes", TORCH_BOX(&seamseg::extract_boxes)); }
