// The best partner of each box of two sets: the host side.
#include "common.cuh"
#include "match_boxes_kernels.cuh"

namespace seamseg {
namespace {

// Threads of a block that searches the best of `count` boxes.
int threads_for(int64_t count) {
  int threads = 32;
  while (threads < kMatchThreads && threads * 4 < count) threads *= 2;
  return threads;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> match_boxes(const Tensor& a_, const Tensor& b_) {
  STD_TORCH_CHECK(a_.dim() == 2 && a_.size(1) == 4 && b_.dim() == 2 && b_.size(1) == 4,
                  "match_boxes: boxes must be N x 4");
  STD_TORCH_CHECK(a_.scalar_type() == b_.scalar_type(), "match_boxes: boxes must be of one type");
  STD_TORCH_CHECK(b_.is_cuda() && a_.get_device_index() == b_.get_device_index(),
                  "match_boxes: boxes must be on one device");
  const DeviceGuard guard(a_.get_device_index());
  const cudaStream_t stream = current_stream(a_);
  const Tensor a = torch::stable::contiguous(a_), b = torch::stable::contiguous(b_);
  const int64_t n = a.size(0), m = b.size(0);
  const ScalarType type = wide_type(a);
  Tensor iou_a = torch::stable::new_empty(a, {n}, type), iou_b = torch::stable::new_empty(a, {m}, type);
  Tensor index_a = torch::stable::new_empty(a, {m}, ScalarType::Long);
  Tensor index_b = torch::stable::new_empty(a, {n}, ScalarType::Long);
  if (n == 0 || m == 0) {
    for (Tensor* iou : {&iou_a, &iou_b}) torch::stable::fill_(*iou, 0);
    for (Tensor* index : {&index_a, &index_b}) torch::stable::fill_(*index, -1);
    return {iou_a, index_b, iou_b, index_a};
  }
  dispatch_floating(a, "match_boxes", [&](auto zero) {
    using S = decltype(zero);
    using T = wide_t<S>;
    // a block a box, for either set
    SEAMSEG_LAUNCH(best_partner<S>, blocks_for(n, 1), threads_for(m), stream, data<S>(a), n, data<S>(b), m,
                   mutable_data<T>(iou_a), mutable_data<int64_t>(index_b));
    SEAMSEG_LAUNCH(best_partner<S>, blocks_for(m, 1), threads_for(n), stream, data<S>(b), m, data<S>(a), n,
                   mutable_data<T>(iou_b), mutable_data<int64_t>(index_a));
  });
  return {iou_a, index_b, iou_b, index_a};
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("match_boxes", TORCH_BOX(&seamseg::match_boxes)); }
