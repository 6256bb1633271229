// In-place ABN on the device, the arithmetic per channel: the host side. Nothing waits for the device.
#include "abn_channels_kernels.cuh"
#include "common.cuh"

namespace seamseg::abn {
namespace {

std::tuple<Tensor, Tensor> abn_forward_channels(const Tensor& mean, const Tensor& var, std::optional<Tensor> total,
                                                std::optional<Tensor> weight, std::optional<Tensor> running_mean,
                                                std::optional<Tensor> running_var, std::optional<Tensor> batches,
                                                std::optional<double> momentum, double eps, int64_t count) {
  const int64_t channels = channels_of(mean, "abn_forward_channels");
  const DeviceGuard guard(mean.get_device_index());
  const cudaStream_t stream = current_stream(mean);
  Tensor invstd = torch::stable::empty_like(mean), scale = torch::stable::empty_like(mean);
  const auto run = [&](auto zero) {
    with_forward<decltype(zero)>(mean, var, total, weight, running_mean, running_var, batches, momentum, eps, count, invstd,
                                 scale, [&](const auto& forward, auto* running_mean, auto* running_var) {
                                   SEAMSEG_LAUNCH(forward_channels, 1, kChannelThreads, stream, forward, channels,
                                                  running_mean, running_var);
                                 });
  };
  mean.scalar_type() == ScalarType::Double ? run(double{}) : run(float{});
  return {invstd, scale};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> abn_backward_channels(
    const Tensor& sum, const Tensor& moment, const Tensor& squares, std::optional<Tensor> joint, std::optional<Tensor> total,
    const Tensor& mean, const Tensor& invstd, std::optional<Tensor> weight, bool training, bool deferred, int64_t count,
    double local_total, double eps, double spacing) {
  const int64_t channels = channels_of(sum, "abn_backward_channels");
  const DeviceGuard guard(sum.get_device_index());
  const cudaStream_t stream = current_stream(sum);
  const BackwardResult result(sum);
  const auto run = [&](auto zero) {
    const auto backward = backward_of<decltype(zero)>(sum, moment, squares, joint, total, mean, invstd, weight, training,
                                                      deferred, count, local_total, eps, spacing, result);
    SEAMSEG_LAUNCH(backward_channels, blocks_for(channels, kChannelThreads), kChannelThreads, stream, backward);
  };
  sum.scalar_type() == ScalarType::Double ? run(double{}) : run(float{});
  return {result.scale, result.offset, result.slope, result.slope_of_z, result.dweight};
}

Tensor abn_scale_gradient(const Tensor& kernel, const Tensor& dkernel, const Tensor& dweight) {
  const int64_t inner = check_kernel(kernel, dkernel, dweight), channels = kernel.size(0);
  const DeviceGuard guard(kernel.get_device_index());
  const cudaStream_t stream = current_stream(kernel);
  Tensor result = torch::stable::new_empty(dweight, {channels}, dweight.scalar_type());
  dispatch_floating(kernel, "abn_scale_gradient", [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    SEAMSEG_LAUNCH(scale_gradient<T>, blocks_for(channels, 1), kChannelThreads, stream, data<T>(kernel),
                   data<T>(dkernel), inner, channels, data<W>(dweight), mutable_data<W>(result));
  });
  return result;
}

}  // namespace
}  // namespace seamseg::abn

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("abn_forward_channels", TORCH_BOX(&seamseg::abn::abn_forward_channels));
  m.impl("abn_backward_channels", TORCH_BOX(&seamseg::abn::abn_backward_channels));
  m.impl("abn_scale_gradient", TORCH_BOX(&seamseg::abn::abn_scale_gradient));
}
