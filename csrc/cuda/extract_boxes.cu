// Bounding boxes of the ids of a map: the host side.
#include <limits>

#include "common.cuh"
#include "extract_boxes_kernels.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;

Tensor extract_boxes(const Tensor& id_map, int64_t n) {
  STD_TORCH_CHECK(id_map.dim() == 2 || id_map.dim() == 3, "extract_boxes: id_map must be H x W or L x H x W");
  STD_TORCH_CHECK(n >= 0, "extract_boxes: n must not be negative");
  const DeviceGuard guard(id_map.get_device_index());
  const cudaStream_t stream = current_stream(id_map);
  const Tensor ids = torch::stable::contiguous(id_map);
  Tensor extents = torch::stable::new_empty(ids, {n, 4}, ScalarType::Int);
  torch::stable::fill_(extents, std::numeric_limits<int32_t>::max());
  Tensor boxes = torch::stable::new_empty(ids, {n, 4}, ScalarType::Float);
  if (n == 0) return boxes;
  const int64_t count = ids.numel();
  if (count > 0) {
    dispatch_integer(ids, "extract_boxes", [&](auto zero) {
      using T = decltype(zero);
      SEAMSEG_LAUNCH(extract_extents<T>, blocks_for(count, kThreads), kThreads, stream, data<T>(ids), count,
                     ids.size(-2), ids.size(-1), n, mutable_data<int32_t>(extents));
    });
  }
  SEAMSEG_LAUNCH(boxes_of_extents, blocks_for(n, kThreads), kThreads, stream, data<int32_t>(extents), n,
                 mutable_data<float>(boxes));
  return boxes;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("extract_boxes", TORCH_BOX(&seamseg::extract_boxes)); }
