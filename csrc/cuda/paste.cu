// Pasting instance masks into an id map: the host side, which never waits for the device.
#include <algorithm>
#include <limits>

#include "common.cuh"
#include "paste_kernels.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;
// The size of a crop is on the device only: enough warps for most, which walk through those that are larger.
constexpr unsigned kMostBlocks = 512, kMostBlocksOfInstance = 64;
// Instances and words of a chunk; a word holds 32 pixels of an instance.
constexpr int64_t kMostInstances = 64, kMostWords = int64_t{1} << 24;

Tensor paste_masks_into(Tensor id_map, const Tensor& masks, const Tensor& boxes, double overlap_threshold,
                        int64_t first_id, bool keep_empty) {
  STD_TORCH_CHECK(id_map.dim() == 2 && id_map.scalar_type() != ScalarType::Bool,
                  "paste_masks_into: id_map must be an integer H x W");
  STD_TORCH_CHECK(masks.dim() == 3 && boxes.dim() == 2 && boxes.size(1) == 4 && masks.size(0) == boxes.size(0),
                  "paste_masks_into: masks must be K x h x w, boxes K x 4");
  STD_TORCH_CHECK(masks.scalar_type() == ScalarType::Float && boxes.scalar_type() == ScalarType::Float,
                  "paste_masks_into: masks and boxes must be float32");
  const int32_t device = id_map.get_device_index();
  STD_TORCH_CHECK(
      masks.is_cuda() && boxes.is_cuda() && masks.get_device_index() == device && boxes.get_device_index() == device,
      "paste_masks_into: arguments must be on one device");
  const int64_t count = masks.size(0), cells_y = masks.size(1), cells_x = masks.size(2);
  const int64_t height = id_map.size(0), width = id_map.size(1);
  STD_TORCH_CHECK(std::max({cells_y, cells_x, id_map.numel()}) < (int64_t{1} << 30), "paste_masks_into: too large");
  const DeviceGuard guard(device);
  const cudaStream_t stream = current_stream(id_map);
  const Tensor target = torch::stable::contiguous(id_map);
  const Tensor cells = torch::stable::contiguous(masks), corners = torch::stable::contiguous(boxes);
  Tensor kept = torch::stable::new_empty(masks, {count}, ScalarType::Bool);
  const int64_t row_words = (width + 31) / 32, words = height * row_words;
  const int64_t fitting = std::min({kMostInstances, count, kMostWords / std::max<int64_t>(1, words)});
  const int64_t chunk = std::max<int64_t>(1, fitting);
  const Tensor planes = torch::stable::new_empty(masks, {chunk, words}, ScalarType::Int);
  const Tensor taken = torch::stable::new_empty(masks, {words}, ScalarType::Int);
  const Tensor numbers = torch::stable::new_empty(masks, {chunk}, ScalarType::Long);
  const Tensor before = torch::stable::new_zeros(masks, {1}, ScalarType::Long);
  const unsigned blocks = blocks_for(words * 32, kThreads);

  dispatch_integer(id_map, "paste_masks_into", [&](auto zero) {
    using Id = decltype(zero);
    constexpr auto kLargest = static_cast<int64_t>(std::numeric_limits<Id>::max());
    STD_TORCH_CHECK(first_id >= 0 && first_id - 1 <= kLargest - count,
                    "paste_masks_into: id_map cannot hold the ids of all instances");
    SEAMSEG_LAUNCH(paste_taken<Id>, std::min(blocks, kMostBlocks), kThreads, stream, data<Id>(target), height, width,
                   static_cast<uint32_t>(row_words), mutable_data<uint32_t>(taken));
    for (int64_t i = 0; i < count; i += chunk) {
      const auto here = static_cast<int32_t>(std::min(chunk, count - i));
      const dim3 grid(std::min(blocks, kMostBlocksOfInstance), static_cast<unsigned>(here));
      const float* box = data<float>(corners) + 4 * i;
      SEAMSEG_LAUNCH(paste_cover, grid, kThreads, stream, data<float>(cells) + i * cells_y * cells_x, box, cells_y,
                     cells_x, height, width, words, mutable_data<uint32_t>(planes));
      SEAMSEG_LAUNCH(paste_decide, 1, kDecideThreads, stream, box, here, cells_y, cells_x, height, width,
                     static_cast<uint32_t>(row_words), words, mutable_data<uint32_t>(planes),
                     mutable_data<uint32_t>(taken), overlap_threshold, keep_empty, first_id,
                     mutable_data<int64_t>(before), mutable_data<int64_t>(numbers), mutable_data<bool>(kept) + i);
      SEAMSEG_LAUNCH(paste_write<Id>, grid, kThreads, stream, box, cells_y, cells_x, height, width, words,
                     data<uint32_t>(planes), data<int64_t>(numbers), mutable_data<Id>(target));
    }
  });
  if (!id_map.is_contiguous()) torch::stable::copy_(id_map, target);
  return kept;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("paste_masks_into", TORCH_BOX(&seamseg::paste_masks_into)); }
