// Crowd pixels in boxes: the host side.
#include <limits>

#include "common.cuh"
#include "crowd_count_kernels.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;

Tensor crowd_count(const Tensor& boxes_, const Tensor& crowd_mask) {
  STD_TORCH_CHECK(boxes_.dim() == 2 && boxes_.size(1) == 4, "crowd_count: boxes must be N x 4");
  STD_TORCH_CHECK(crowd_mask.dim() == 2, "crowd_count: crowd_mask must be H x W");
  STD_TORCH_CHECK(crowd_mask.numel() <= std::numeric_limits<int32_t>::max(), "crowd_count: more than 2^31 pixels");
  STD_TORCH_CHECK(crowd_mask.is_cuda() && crowd_mask.get_device_index() == boxes_.get_device_index(),
                  "crowd_count: arguments must be on one device");
  const DeviceGuard guard(boxes_.get_device_index());
  const cudaStream_t stream = current_stream(boxes_);
  const Tensor boxes = torch::stable::contiguous(boxes_), mask = torch::stable::contiguous(crowd_mask);
  const int64_t n = boxes.size(0), height = mask.size(0), width = mask.size(1);
  Tensor counts = torch::stable::new_empty(boxes, {n}, ScalarType::Long);
  if (n == 0) return counts;
  Tensor integral = torch::stable::new_zeros(boxes, {height + 1, width + 1}, ScalarType::Int);
  auto* sums = mutable_data<int32_t>(integral);
  if (mask.numel() > 0) {
    dispatch_integer(mask, "crowd_count", [&](auto zero) {
      using S = decltype(zero);
      // a block a row
      SEAMSEG_LAUNCH(sum_rows<S>, blocks_for(height, 1), kRowThreads, stream, data<S>(mask), height, width, sums);
    });
    // small blocks: the columns are few
    SEAMSEG_LAUNCH(sum_columns, blocks_for(width, 32), 32, stream, sums, height, width);
  }
  dispatch_floating(boxes, "crowd_count", [&](auto zero) {
    using S = decltype(zero);
    SEAMSEG_LAUNCH(count_in_boxes<S>, blocks_for(n, kThreads), kThreads, stream, data<S>(boxes), n, sums, height,
                   width, mutable_data<int64_t>(counts));
  });
  return counts;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("crowd_count", TORCH_BOX(&seamseg::crowd_count)); }
