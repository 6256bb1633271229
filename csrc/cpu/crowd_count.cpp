// Crowd pixels in boxes, by an integral image of the part of the mask that has any.
#include "boxes.h"

namespace seamseg {
namespace {

// The rectangle around what is not 0.
struct Extent {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
};

template <class S>
SEAMSEG_CLONES bool row_has_any(const S* SEAMSEG_RESTRICT row, int64_t width) {
  S any = 0;
  for (int64_t x = 0; x < width; ++x) any |= row[x];
  return any != 0;
}

template <class S>
Extent extent_of(const S* mask, int64_t height, int64_t width) {
  Extent extent{height, width, 0, 0};
  for (int64_t y = 0; y < height; ++y) {
    const S* row = mask + y * width;
    if (!row_has_any(row, width)) continue;
    extent.top = std::min(extent.top, y);
    extent.bottom = y + 1;
    int64_t x = 0;
    while (x < extent.left && row[x] == 0) ++x;
    extent.left = x;
    x = width;
    while (x > extent.right && row[x - 1] == 0) --x;
    extent.right = x;
  }
  return extent;
}

// Pixels that are not 0 above and to the left of each corner of the extent's pixels.
template <class S>
std::vector<int32_t> integral_of(const S* mask, int64_t width, const Extent& extent) {
  const int64_t columns = extent.right - extent.left + 1;
  std::vector<int32_t> integral((extent.bottom - extent.top + 1) * columns);
  for (int64_t y = extent.top; y < extent.bottom; ++y) {
    const S* row = mask + y * width + extent.left;
    const int32_t* above = integral.data() + (y - extent.top) * columns;
    int32_t* below = integral.data() + (y - extent.top + 1) * columns;
    int32_t sum = 0;
    for (int64_t x = 1; x < columns; ++x) {
      sum += row[x - 1] != 0;
      below[x] = above[x] + sum;
    }
  }
  return integral;
}

// A corner truncated and cut to [low, high], counted from low; NaN counts as 0.
template <class T>
SEAMSEG_INLINE int64_t cut(T corner, int64_t low, int64_t high) {
  const T inside = corner > T(low) ? (corner < T(high) ? corner : T(high)) : T(low);
  // float may have rounded `high` up, or `low` down
  return std::min(std::max(static_cast<int64_t>(inside), low), high) - low;
}

template <class S>
void count_boxes(const Tensor& boxes, const std::vector<int32_t>& integral, const Extent& extent, int64_t* counts) {
  using T = wide_t<S>;
  const int64_t columns = extent.right - extent.left + 1;
  // every thread writes counts of its own
  torch::stable::parallel_for(0, boxes.size(0), 4096, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Box<T> box = load_box<T>(data<S>(boxes) + 4 * i);
      const int32_t* top = integral.data() + cut(box.y0, extent.top, extent.bottom) * columns;
      const int32_t* bottom = integral.data() + cut(box.y1, extent.top, extent.bottom) * columns;
      const int64_t left = cut(box.x0, extent.left, extent.right), right = cut(box.x1, extent.left, extent.right);
      counts[i] = int64_t{bottom[right]} - top[right] - bottom[left] + top[left];
    }
  });
}

Tensor crowd_count(const Tensor& boxes_, const Tensor& crowd_mask) {
  check_boxes(boxes_, "crowd_count");
  STD_TORCH_CHECK(crowd_mask.dim() == 2, "crowd_count: crowd_mask must be H x W");
  STD_TORCH_CHECK(crowd_mask.numel() <= std::numeric_limits<int32_t>::max(), "crowd_count: more than 2^31 pixels");
  const Tensor boxes = torch::stable::contiguous(boxes_), mask = torch::stable::contiguous(crowd_mask);
  const int64_t height = mask.size(0), width = mask.size(1);
  Tensor counts = torch::stable::new_empty(boxes, {boxes.size(0)}, ScalarType::Long);
  auto* out = mutable_data<int64_t>(counts);
  Extent extent;
  std::vector<int32_t> integral;
  dispatch_integer(mask, "crowd_count", [&](auto zero) {
    using S = decltype(zero);
    extent = extent_of(data<S>(mask), height, width);
    if (extent.bottom > 0) integral = integral_of(data<S>(mask), width, extent);
  });
  if (integral.empty()) {
    std::fill_n(out, boxes.size(0), 0);
    return counts;
  }
  dispatch_floating(boxes, "crowd_count",
                    [&](auto zero) { count_boxes<decltype(zero)>(boxes, integral, extent, out); });
  return counts;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("crowd_count", TORCH_BOX(&seamseg::crowd_count)); }
