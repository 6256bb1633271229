// IoU of all pairs of two sets of boxes.
#include "boxes.h"

namespace seamseg {
namespace {

void check_pair(const Tensor& a, const Tensor& b, const char* op) {
  check_boxes(a, op);
  check_boxes(b, op);
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": boxes must be of one type");
}

template <class S, class T>
SEAMSEG_CLONES void iou_row(const S* a, const Columns<T>& b, int64_t m, S* SEAMSEG_RESTRICT out) {
  const Box<T> box = load_box<T>(a);
  const T area = area_of(box);
  for (int64_t j = 0; j < m; ++j) store(out + j, iou_of(box, area, b[j], b.area[j]));
}

Tensor box_iou(const Tensor& a_, const Tensor& b_) {
  check_pair(a_, b_, "box_iou");
  const Tensor a = torch::stable::contiguous(a_), b = torch::stable::contiguous(b_);
  const int64_t n = a.size(0), m = b.size(0);
  Tensor out = torch::stable::new_empty(a, {n, m});
  dispatch_floating(a, "box_iou", [&](auto zero) {
    using S = decltype(zero);
    const auto columns = columns_of<wide_t<S>>(data<S>(b), m);
    // every thread writes rows of its own
    torch::stable::parallel_for(0, n, 1 + 8192 / (m + 1), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) iou_row(data<S>(a) + 4 * i, columns, m, mutable_data<S>(out) + i * m);
    });
  });
  return out;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("box_iou", TORCH_BOX(&seamseg::box_iou));
}
