// Pasting instance masks into an id map: the operator.
#include <algorithm>
#include <limits>

#include "../paste_rows.h"
#include "common.h"

namespace seamseg {
namespace {

Tensor paste_masks_into(Tensor id_map, const Tensor& masks, const Tensor& boxes, double overlap_threshold,
                        int64_t first_id, bool keep_empty) {
  STD_TORCH_CHECK(id_map.dim() == 2 && id_map.scalar_type() != ScalarType::Bool,
                  "paste_masks_into: id_map must be an integer H x W");
  STD_TORCH_CHECK(masks.dim() == 3 && boxes.dim() == 2 && boxes.size(1) == 4 && masks.size(0) == boxes.size(0),
                  "paste_masks_into: masks must be K x h x w, boxes K x 4");
  STD_TORCH_CHECK(masks.scalar_type() == ScalarType::Float && boxes.scalar_type() == ScalarType::Float,
                  "paste_masks_into: masks and boxes must be float32");
  STD_TORCH_CHECK(masks.is_cpu() && boxes.is_cpu(), "paste_masks_into: arguments must be on one device");
  const int64_t count = masks.size(0), cells_y = masks.size(1), cells_x = masks.size(2);
  const int64_t height = id_map.size(0), width = id_map.size(1);
  STD_TORCH_CHECK(std::max({cells_y, cells_x, height, width}) < (int64_t{1} << 30), "paste_masks_into: too large");
  const Tensor target = torch::stable::contiguous(id_map);
  const Tensor cells = torch::stable::contiguous(masks), corners = torch::stable::contiguous(boxes);
  Tensor kept = torch::stable::new_empty(masks, {count}, ScalarType::Bool);
  bool* keeps = mutable_data<bool>(kept);

  dispatch_integer(id_map, "paste_masks_into", [&](auto zero) {
    using Id = decltype(zero);
    constexpr auto kLargest = static_cast<int64_t>(std::numeric_limits<Id>::max());
    STD_TORCH_CHECK(first_id >= 0 && first_id - 1 <= kLargest - count,
                    "paste_masks_into: id_map cannot hold the ids of all instances");
    const auto parallel = [](int64_t rows, int64_t grain, auto&& f) {
      torch::stable::parallel_for(0, rows, grain, f);
    };
    paste_instances(data<float>(cells), data<float>(corners), count, cells_y, cells_x, mutable_data<Id>(target), height,
                    width, overlap_threshold, first_id, keep_empty, keeps, parallel);
  });
  if (!id_map.is_contiguous()) torch::stable::copy_(id_map, target);
  return kept;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("paste_masks_into", TORCH_BOX(&seamseg::paste_masks_into)); }
