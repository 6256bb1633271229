// Counting the labels of a map, and putting them where an id map is free: the host side.
#include "common.cuh"
#include "labels_kernels.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;
// A block empties its table into the common one: few blocks, many pixels each.
constexpr unsigned kMostBlocks = 1024;

bool fits(const Tensor& a, const Tensor& b) {
  return a.is_cuda() && a.get_device_index() == b.get_device_index() && same_shape(a, b);
}

Tensor count_labels(const Tensor& labels, int64_t n, const std::optional<Tensor>& id_map) {
  STD_TORCH_CHECK(n >= 0 && n <= (1 << 24), "count_labels: n must be 0 to 2^24");
  STD_TORCH_CHECK(labels.numel() < (int64_t{1} << 31), "count_labels: too many pixels");
  STD_TORCH_CHECK(!id_map.has_value() || fits(*id_map, labels),
                  "count_labels: id_map must have the shape of labels and be on its device");
  const DeviceGuard guard(labels.get_device_index());
  const cudaStream_t stream = current_stream(labels);
  const Tensor source = torch::stable::contiguous(labels);
  std::optional<Tensor> map;
  if (id_map.has_value()) map = torch::stable::contiguous(*id_map);
  const Tensor counts = torch::stable::new_zeros(labels, {n}, ScalarType::Int);
  const int64_t count = source.numel();
  const unsigned blocks = blocks_for(count, kThreads) < kMostBlocks ? blocks_for(count, kThreads) : kMostBlocks;
  const auto count_with = [&](const auto* values, const auto* ids) {
    using Label = std::remove_cvref_t<decltype(*values)>;
    using Id = std::remove_cvref_t<decltype(*ids)>;
    SEAMSEG_LAUNCH((label_counts<Label, Id>), blocks, kThreads, stream, values, ids, count, n,
                   mutable_data<int32_t>(counts));
  };
  if (count > 0 && n > 0) {
    dispatch_integer(source, "count_labels", [&](auto label) {
      using Label = decltype(label);
      if (!map.has_value()) return count_with(data<Label>(source), static_cast<const uint8_t*>(nullptr));
      dispatch_integer(*map, "count_labels",
                       [&](auto id) { count_with(data<Label>(source), data<decltype(id)>(*map)); });
    });
  }
  return torch::stable::to(counts, ScalarType::Long);
}

void fill_free(Tensor id_map, const Tensor& labels, const Tensor& ids) {
  STD_TORCH_CHECK(fits(labels, id_map) && ids.is_cuda() && ids.get_device_index() == id_map.get_device_index(),
                  "fill_free: id_map must have the shape of labels, and all must be on one device");
  STD_TORCH_CHECK(ids.dim() == 1 && ids.scalar_type() == ScalarType::Long, "fill_free: ids must be n int64");
  STD_TORCH_CHECK(id_map.scalar_type() != ScalarType::Bool, "fill_free: id_map must be an integer tensor");
  const DeviceGuard guard(id_map.get_device_index());
  const cudaStream_t stream = current_stream(id_map);
  const Tensor target = torch::stable::contiguous(id_map), source = torch::stable::contiguous(labels);
  const Tensor table = torch::stable::contiguous(ids);
  const int64_t count = target.numel();
  if (count > 0) {
    dispatch_integer(target, "fill_free", [&](auto id) {
      using Id = decltype(id);
      dispatch_integer(source, "fill_free", [&](auto label) {
        using Label = decltype(label);
        SEAMSEG_LAUNCH((fill_free_pixels<Id, Label>), blocks_for(count, kThreads), kThreads, stream,
                       mutable_data<Id>(target), data<Label>(source), count, data<int64_t>(table), table.numel());
      });
    });
  }
  if (!id_map.is_contiguous()) torch::stable::copy_(id_map, target);
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("count_labels", TORCH_BOX(&seamseg::count_labels));
  m.impl("fill_free", TORCH_BOX(&seamseg::fill_free));
}
