// The best partner of each box of two sets: the host side.
#include <algorithm>
#include <limits>

#include "common.cuh"
#include "match_boxes_kernels.cuh"

namespace seamseg {
namespace {

// For each of the n boxes of `a` the best of the m of `b`; neither is empty.
template <class S>
void find_partners(const Tensor& a, const Tensor& b, const Tensor& iou, const Tensor& index, cudaStream_t stream) {
  using T = wide_t<S>;
  constexpr int64_t kBlocks = 1056, kLeastSteps = 4;  // enough for a large card
  const int64_t n = a.size(0), m = b.size(0);
  auto* ious = mutable_data<T>(iou);
  auto* partners = mutable_data<int64_t>(index);
  if (m <= n) {
    SEAMSEG_LAUNCH(best_partner<S>, blocks_for(n, kMatchThreads), kMatchThreads, stream, data<S>(a), n, data<S>(b), m,
                   ious, partners);
    return;
  }
  const int64_t groups = (n + kMatchGroup - 1) / kMatchGroup;
  STD_TORCH_CHECK(groups <= std::numeric_limits<int32_t>::max(), "match_boxes: too many boxes");
  const int64_t parts = std::max<int64_t>(1, std::min(kBlocks / groups, m / (kMatchThreads * kLeastSteps)));
  const Tensor part_ious = parts > 1 ? torch::stable::new_empty(a, {n, parts}, iou.scalar_type()) : iou;
  const Tensor part_index = parts > 1 ? torch::stable::new_empty(a, {n, parts}, ScalarType::Long) : index;
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(parts));
  SEAMSEG_LAUNCH(best_of_many<S>, grid, kMatchThreads, stream, data<S>(a), n, data<S>(b), m, mutable_data<T>(part_ious),
                 mutable_data<int64_t>(part_index));
  if (parts == 1) return;
  SEAMSEG_LAUNCH(join_partners<T>, blocks_for(n * 32, kMatchThreads), kMatchThreads, stream, data<T>(part_ious),
                 data<int64_t>(part_index), n, parts, ious, partners);
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
    find_partners<S>(a, b, iou_a, index_b, stream);
    find_partners<S>(b, a, iou_b, index_a, stream);
  });
  return {iou_a, index_b, iou_b, index_a};
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("match_boxes", TORCH_BOX(&seamseg::match_boxes)); }
