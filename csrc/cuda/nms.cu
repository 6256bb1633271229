// Greedy non-maximum suppression: the host side. Sorting is torch's.
#include <array>
#include <limits>

#include "common.cuh"
#include "nms_kernels.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;

// Sorted values and their indices; equal values keep their order. (torch::stable::sort is younger than our oldest torch)
std::pair<Tensor, Tensor> sort_stably(const Tensor& x, bool descending) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(x), from(std::optional<bool>(true)), from(int64_t{0}), from(descending)};
  const bool ok = torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION) == 0;
  STD_TORCH_CHECK(ok, "nms: sorting failed");
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

Tensor take(const Tensor& x, const Tensor& index) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(int64_t{0}), from(index)};
  const bool ok = torch_call_dispatcher("aten::index_select", "", stack.data(), TORCH_ABI_VERSION) == 0;
  STD_TORCH_CHECK(ok, "nms: gathering failed");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

std::tuple<Tensor, Tensor> nms_fixed(const Tensor& boxes_, const Tensor& scores, double threshold, int64_t n_max,
                                     const std::optional<Tensor>& groups) {
  STD_TORCH_CHECK(boxes_.dim() == 2 && boxes_.size(1) == 4, "nms: boxes must be N x 4");
  const int64_t n = boxes_.size(0);
  const auto is_beside = [&](const Tensor& x) {
    return x.dim() == 1 && x.size(0) == n && x.is_cuda() && x.get_device_index() == boxes_.get_device_index();
  };
  STD_TORCH_CHECK(is_beside(scores), "nms: scores must be N, on the device of the boxes");
  STD_TORCH_CHECK(n <= std::numeric_limits<int32_t>::max(), "nms: more than 2^31 boxes");
  STD_TORCH_CHECK(!groups.has_value() || (is_beside(*groups) && groups->scalar_type() == ScalarType::Long),
                  "nms: groups must be N int64, on the device of the boxes");
  const DeviceGuard guard(boxes_.get_device_index());
  const cudaStream_t stream = current_stream(boxes_);
  const int64_t size = n_max > 0 && !groups.has_value() ? (n_max < n ? n_max : n) : n;
  Tensor indices = torch::stable::new_empty(boxes_, {size}, ScalarType::Long);
  Tensor total = torch::stable::new_zeros(boxes_, {}, ScalarType::Long);
  if (n == 0) return {indices, total};

  const Tensor boxes = torch::stable::contiguous(boxes_);
  const Tensor order = torch::stable::contiguous(sort_stably(scores, true).second);
  std::optional<Tensor> sorted_groups, rank;
  if (groups.has_value()) {
    const auto [values, places] = sort_stably(take(*groups, order), false);
    sorted_groups = torch::stable::contiguous(values);
    rank = torch::stable::contiguous(places);
  }
  Tensor keep = torch::stable::new_zeros(boxes, {n}, ScalarType::Byte);
  dispatch_floating(boxes, "nms", [&](auto zero) {
    using S = decltype(zero);
    using T = wide_t<S>;
    const ScalarType type = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;
    Tensor candidates = torch::stable::new_empty(boxes, {n, 5}, type);
    auto* places = mutable_data<Candidate<T>>(candidates);
    const int64_t *group = data_or_null<int64_t>(sorted_groups), *ranks = data_or_null<int64_t>(rank);
    SEAMSEG_LAUNCH(gather_candidates<S>, blocks_for(n, kThreads), kThreads, stream, data<S>(boxes), n,
                   data<int64_t>(order), ranks, places);
    const int64_t words = (n + kBits - 1) / kBits;
    // groups with a limit are images: few and long; those without one are classes, short enough for a block each
    const bool in_blocks = groups.has_value() && n_max <= 0;
    if (!in_blocks && n > kChunk && words <= kMostWords) {
      const Tensor matrix = torch::stable::new_empty(boxes, {n, words}, ScalarType::Long);
      auto* bits = mutable_data<unsigned long long>(matrix);
      const dim3 grid(static_cast<unsigned>(words), static_cast<unsigned>((n + kMatrixRows - 1) / kMatrixRows));
      SEAMSEG_LAUNCH(overlap_matrix<T>, grid, kMatrixRows, stream, places, group, n, static_cast<T>(threshold), bits);
      SEAMSEG_LAUNCH(walk_matrix, 1, kMostWords, stream, bits, group, ranks, n, static_cast<int>(words), n_max,
                     mutable_data<uint8_t>(keep));
      return;
    }
    // blocks that begin no group end at once
    const unsigned blocks = groups.has_value() ? blocks_for(n, 16) : 1;
    Tensor kept = torch::stable::new_empty(boxes, {n}, ScalarType::Int);
    SEAMSEG_LAUNCH(suppress<T>, blocks, kChunk, stream, places, group, ranks, n, static_cast<T>(threshold), n_max,
                   mutable_data<int32_t>(kept), mutable_data<uint8_t>(keep));
  });
  SEAMSEG_LAUNCH(emit_kept, 1, kEmitThreads, stream, data<uint8_t>(keep), data<int64_t>(order), n, size,
                 mutable_data<int64_t>(indices), mutable_data<int64_t>(total));
  return {indices, total};
}

Tensor nms(const Tensor& boxes, const Tensor& scores, double threshold, int64_t n_max,
           const std::optional<Tensor>& groups) {
  auto [indices, total] = nms_fixed(boxes, scores, threshold, n_max, groups);
  const Tensor on_host = torch::stable::to(total, torch::stable::Device(torch::headeronly::DeviceType::CPU));
  return torch::stable::narrow(indices, 0, 0, *data<int64_t>(on_host));
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("nms", TORCH_BOX(&seamseg::nms));
  m.impl("nms_fixed", TORCH_BOX(&seamseg::nms_fixed));
}
