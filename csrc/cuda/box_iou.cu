// IoU of all pairs of two sets of boxes, and its gradient: the host side.
#include "box_iou_kernels.cuh"
#include "common.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;

void check_pair(const Tensor& a, const Tensor& b, const char* op) {
  STD_TORCH_CHECK(a.dim() == 2 && a.size(1) == 4 && b.dim() == 2 && b.size(1) == 4, op, ": boxes must be N x 4");
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": boxes must be of one type");
  STD_TORCH_CHECK(b.is_cuda() && a.get_device_index() == b.get_device_index(), op, ": boxes must be on one device");
}

Tensor box_iou(const Tensor& a_, const Tensor& b_) {
  check_pair(a_, b_, "box_iou");
  const DeviceGuard guard(a_.get_device_index());
  const cudaStream_t stream = current_stream(a_);
  const Tensor a = torch::stable::contiguous(a_), b = torch::stable::contiguous(b_);
  const int64_t n = a.size(0), m = b.size(0);
  Tensor out = torch::stable::new_empty(a, {n, m});
  if (n * m == 0) return out;
  dispatch_floating(a, "box_iou", [&](auto zero) {
    using S = decltype(zero);
    SEAMSEG_LAUNCH(box_iou_kernel<S>, blocks_for(n * m, kThreads), kThreads, stream, data<S>(a), n, data<S>(b), m,
                   mutable_data<S>(out));
  });
  return out;
}

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad_, const Tensor& a_, const Tensor& b_) {
  check_pair(a_, b_, "box_iou_backward");
  const int64_t n = a_.size(0), m = b_.size(0);
  STD_TORCH_CHECK(grad_.dim() == 2 && grad_.size(0) == n && grad_.size(1) == m && grad_.is_cuda() &&
                      grad_.scalar_type() == a_.scalar_type() && grad_.get_device_index() == a_.get_device_index(),
                  "box_iou_backward: grad must be N x M, of the type of the boxes and on their device");
  const DeviceGuard guard(a_.get_device_index());
  const cudaStream_t stream = current_stream(a_);
  const Tensor grad = torch::stable::contiguous(grad_);
  const Tensor a = torch::stable::contiguous(a_), b = torch::stable::contiguous(b_);
  Tensor of_a = torch::stable::new_empty(a, {n, 4}), of_b = torch::stable::new_empty(b, {m, 4});
  dispatch_floating(a, "box_iou_backward", [&](auto zero) {
    using S = decltype(zero);
    // a block a box
    const auto launch = [&](const Tensor& first, const Tensor& second, int64_t row, int64_t column, Tensor& out) {
      if (first.size(0) == 0) return;
      SEAMSEG_LAUNCH(gradient_of_first_kernel<S>, blocks_for(first.size(0), 1), kGradientThreads, stream,
                     data<S>(first), first.size(0), data<S>(second), second.size(0), data<S>(grad), row, column,
                     mutable_data<S>(out));
    };
    launch(a, b, m, 1, of_a);
    launch(b, a, 1, m, of_b);
  });
  return {of_a, of_b};
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("box_iou", TORCH_BOX(&seamseg::box_iou));
  m.impl("box_iou_backward", TORCH_BOX(&seamseg::box_iou_backward));
}
