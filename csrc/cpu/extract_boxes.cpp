// Bounding boxes of the ids of a map: one walk along its runs, rows shared among the threads.
#include <algorithm>

#include "../label_rows.h"
#include "common.h"

namespace seamseg {
namespace {

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
    write_box(all, out + 4 * id);
  }
  return boxes;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("extract_boxes", TORCH_BOX(&seamseg::extract_boxes)); }
