// IoU of all pairs of two sets of boxes: the host side.
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

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("box_iou", TORCH_BOX(&seamseg::box_iou));
}
