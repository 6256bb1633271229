// In-place ABN on the device: the host side. Nothing waits for the device.
#include <algorithm>

#include "../abn_arguments.h"
#include "abn_kernels.cuh"
#include "common.cuh"

namespace seamseg::abn {
namespace {

// Blocks of a first stage: enough of them to fill a large card, few enough for the second stage to be short.
struct Stage {
  dim3 grid;
  int64_t parts;
};

Stage first_stage(const Layout& layout) {
  constexpr int64_t kBlocks = 2048, kMostParts = 256, kLeastSteps = 8;
  const int64_t columns = layout.rows ? (layout.channels + kLanes - 1) / kLanes : layout.channels;
  const int64_t steps = layout.rows ? layout.outer / kRows : layout.outer * layout.inner / kThreads;
  const int64_t wanted = std::min({kBlocks / std::max<int64_t>(1, columns), kMostParts, steps / kLeastSteps});
  const int64_t parts = std::max<int64_t>(1, wanted);
  return {dim3(static_cast<unsigned>(columns), static_cast<unsigned>(parts)), parts};
}

std::tuple<Tensor, Tensor> abn_statistics(const Tensor& x) {
  const Layout layout = layout_of(x, "abn_statistics");
  const DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(x);
  const Stage stage = first_stage(layout);
  Tensor mean = torch::stable::new_empty(x, {layout.channels}, wide_type(x));
  Tensor var = torch::stable::new_empty(x, {layout.channels}, wide_type(x));
  if (layout.channels == 0) return {mean, var};
  Tensor partial = torch::stable::new_empty(x, {stage.parts, 3, layout.channels}, wide_type(x));
  dispatch_floating(x, "abn_statistics", [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    SEAMSEG_LAUNCH(statistics_partial<T>, stage.grid, kThreads, stream, data<T>(x), layout, mutable_data<W>(partial));
    SEAMSEG_LAUNCH(statistics_join<W>, blocks_for(layout.channels, kThreads), kThreads, stream, data<W>(partial),
                   stage.parts, layout.channels, mutable_data<W>(mean), mutable_data<W>(var));
  });
  return {mean, var};
}

Tensor abn_transform(const Tensor& x, const Tensor& mean, const Tensor& scale, const Tensor& bias,
                     std::optional<Tensor> residual, int64_t activation, double parameter) {
  const char* op = "abn_transform";
  const Layout layout = layout_of(x, op);
  if (residual.has_value()) check_like(*residual, x, op, "residual");
  const DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(x);
  Tensor y = torch::stable::empty_like(x);
  const int64_t count = x.numel();
  dispatch_floating(x, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W* m = per_channel<W>(mean, x, layout.channels, op, "mean");
    const W* s = per_channel<W>(scale, x, layout.channels, op, "scale");
    const W* b = per_channel<W>(bias, x, layout.channels, op, "bias");
    if (count == 0) return;
    with_activation<W>(activation, parameter, op, [&](auto act) {
      SEAMSEG_LAUNCH(transform, blocks_for(count, kThreads), kThreads, stream, data<T>(x), data_or_null<T>(residual),
                     mutable_data<T>(y), count, layout, m, s, b, act);
    });
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor> abn_backward_reduce(const Tensor& dy, const Tensor& y, std::optional<Tensor> residual,
                                                       const Tensor& bias, int64_t activation, double parameter) {
  const char* op = "abn_backward_reduce";
  const Layout layout = layout_of(y, op);
  check_like(dy, y, op, "dy");
  if (residual.has_value()) check_like(*residual, y, op, "residual");
  const DeviceGuard guard(y.get_device_index());
  const cudaStream_t stream = current_stream(y);
  const Stage stage = first_stage(layout);
  Tensor sum = torch::stable::new_empty(y, {layout.channels}, wide_type(y));
  Tensor moment = torch::stable::new_empty(y, {layout.channels}, wide_type(y));
  Tensor squares = torch::stable::new_empty(y, {layout.channels}, wide_type(y));
  Tensor partial = torch::stable::new_empty(y, {stage.parts, 3, layout.channels}, wide_type(y));
  dispatch_floating(y, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W* b = per_channel<W>(bias, y, layout.channels, op, "bias");
    if (layout.channels == 0) return;
    with_activation<W>(activation, parameter, op, [&](auto act) {
      SEAMSEG_LAUNCH(reduce_partial, stage.grid, kThreads, stream, data<T>(dy), data<T>(y), data_or_null<T>(residual),
                     layout, b, act, mutable_data<W>(partial));
    });
    SEAMSEG_LAUNCH(reduce_join<W>, blocks_for(layout.channels, kThreads), kThreads, stream, data<W>(partial),
                   stage.parts, layout.channels, mutable_data<W>(sum), mutable_data<W>(moment),
                   mutable_data<W>(squares));
  });
  return {sum, moment, squares};
}

std::tuple<Tensor, Tensor> abn_backward_input(const Tensor& dy, const Tensor& y, std::optional<Tensor> residual,
                                              const Tensor& bias, const Tensor& scale, const Tensor& offset,
                                              const Tensor& slope, int64_t activation, double parameter) {
  const char* op = "abn_backward_input";
  const Layout layout = layout_of(y, op);
  check_like(dy, y, op, "dy");
  if (residual.has_value()) check_like(*residual, y, op, "residual");
  const DeviceGuard guard(y.get_device_index());
  const cudaStream_t stream = current_stream(y);
  Tensor dx = torch::stable::empty_like(y);
  Tensor dresidual = residual.has_value() ? torch::stable::empty_like(y) : torch::stable::new_empty(y, {0});
  const int64_t count = y.numel();
  dispatch_floating(y, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W* b = per_channel<W>(bias, y, layout.channels, op, "bias");
    const W* s = per_channel<W>(scale, y, layout.channels, op, "scale");
    const W* o = per_channel<W>(offset, y, layout.channels, op, "offset");
    const W* k = per_channel<W>(slope, y, layout.channels, op, "slope");
    if (count == 0) return;
    with_activation<W>(activation, parameter, op, [&](auto act) {
      SEAMSEG_LAUNCH(backward_input, blocks_for(count, kThreads), kThreads, stream, data<T>(dy), data<T>(y),
                     data_or_null<T>(residual), mutable_data<T>(dx), mutable_data<T>(dresidual), count, layout, b, s, o,
                     k, act);
    });
  });
  return {dx, dresidual};
}

}  // namespace
}  // namespace seamseg::abn

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("abn_statistics", TORCH_BOX(&seamseg::abn::abn_statistics));
  m.impl("abn_transform", TORCH_BOX(&seamseg::abn::abn_transform));
  m.impl("abn_backward_reduce", TORCH_BOX(&seamseg::abn::abn_backward_reduce));
  m.impl("abn_backward_input", TORCH_BOX(&seamseg::abn::abn_backward_input));
}
