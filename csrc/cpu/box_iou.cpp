// IoU of all pairs of two sets of boxes, and its gradient.
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

// The gradient of each of `n` boxes of a; `row` and `column` are the strides of `grad` along a and along b.
template <class S>
void gradient_of_first(const Tensor& a, const Tensor& b, const S* grad, int64_t row, int64_t column, S* out) {
  using T = wide_t<S>;
  const int64_t n = a.size(0), m = b.size(0);
  // every thread writes rows of its own
  torch::stable::parallel_for(0, n, 1 + 8192 / (m + 1), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Box<T> box = load_box<T>(data<S>(a) + 4 * i);
      T sum[4] = {0, 0, 0, 0};
      for (int64_t j = 0; j < m; ++j) {
        add_iou_gradient(box, load_box<T>(data<S>(b) + 4 * j), T(load(grad + i * row + j * column)), sum);
      }
      for (int k = 0; k < 4; ++k) store(out + 4 * i + k, sum[k]);
    }
  });
}

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad_, const Tensor& a_, const Tensor& b_) {
  check_pair(a_, b_, "box_iou_backward");
  const int64_t n = a_.size(0), m = b_.size(0);
  STD_TORCH_CHECK(grad_.dim() == 2 && grad_.size(0) == n && grad_.size(1) == m &&
                      grad_.scalar_type() == a_.scalar_type(),
                  "box_iou_backward: grad must be N x M, of the type of the boxes");
  const Tensor grad = torch::stable::contiguous(grad_);
  const Tensor a = torch::stable::contiguous(a_), b = torch::stable::contiguous(b_);
  Tensor of_a = torch::stable::new_empty(a, {n, 4}), of_b = torch::stable::new_empty(b, {m, 4});
  dispatch_floating(a, "box_iou_backward", [&](auto zero) {
    using S = decltype(zero);
    gradient_of_first(a, b, data<S>(grad), m, 1, mutable_data<S>(of_a));
    gradient_of_first(b, a, data<S>(grad), 1, m, mutable_data<S>(of_b));
  });
  return {of_a, of_b};
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("box_iou", TORCH_BOX(&seamseg::box_iou));
  m.impl("box_iou_backward", TORCH_BOX(&seamseg::box_iou_backward));
}
