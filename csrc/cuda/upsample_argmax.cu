// The best class of each pixel of upsampled logits: the host side.
#include "../upsample_host.h"
#include "common.cuh"
#include "upsample_argmax_kernels.cuh"

namespace seamseg {
namespace {

using namespace upsampling;

constexpr int kThreads = 256;

Tensor upsample_argmax(const Tensor& logits, int64_t padded_height, int64_t padded_width, int64_t height,
                       int64_t width) {
  const Shape shape = check_upsample("upsample_argmax", logits, padded_height, padded_width, height, width);
  const DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(logits);
  Tensor source = torch::stable::new_empty(logits, {shape.height, shape.width}, ScalarType::Int);
  Tensor result = torch::stable::new_empty(logits, {height, width}, ScalarType::Long);
  dispatch_floating(logits, "upsample_argmax", [&](auto zero) {
    using T = decltype(zero);
    SEAMSEG_LAUNCH(best_of_source<T>, blocks_for(source.numel(), kThreads), kThreads, stream, data<T>(logits), shape,
                   mutable_data<int32_t>(source));
    SEAMSEG_LAUNCH(best_of_pixels<T>, blocks_for(result.numel(), kThreads), kThreads, stream, data<T>(logits), shape,
                   source_scale(shape.height, padded_height), source_scale(shape.width, padded_width),
                   data<int32_t>(source), height, width, mutable_data<int64_t>(result));
  });
  return result;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("upsample_argmax", TORCH_BOX(&seamseg::upsample_argmax)); }
