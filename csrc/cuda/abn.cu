// In-place ABN on the device: the host side. Nothing waits for the device.
#include <algorithm>

#include "../abn_arguments.h"
#include "abn_kernels.cuh"
#include "common.cuh"

namespace seamseg::abn {
namespace {

// Blocks of the sums and of the walks. Planes: a few times what an H100 runs at once (132 x 3). Rows: each block ends by
// joining and storing many channels, which the second stage reads, so no more blocks than an H100 runs at once. Each
// thread takes a few packs at least, as it reads the values of its channels first.
template <bool kPlanes>
constexpr int64_t kSumBlocks = kPlanes ? 1188 : 396;
constexpr int64_t kWalkBlocks = 2376, kLeastSteps = 12;

template <int kVec, bool kPlanes>
dim3 grid_of(const Access<kVec, kPlanes>& access, int64_t blocks) {
  const Layout& layout = access.layout;
  const int64_t packs = layout.channels / kVec, rows = kThreads / access.lanes;
  const int64_t columns = kPlanes ? layout.channels : (packs + access.lanes - 1) / access.lanes;
  const int64_t steps = (kPlanes ? layout.outer * (layout.inner / kVec) : layout.outer) / rows;
  const int64_t parts = std::max<int64_t>(1, std::min(blocks / columns, steps / kLeastSteps));
  return dim3(static_cast<unsigned>(columns), static_cast<unsigned>(parts));
}

template <int kVec, bool kPlanes>
dim3 grid_of_sums(const Access<kVec, kPlanes>& access) {
  return grid_of(access, kSumBlocks<kPlanes>);
}

// f(access): 16 bytes at once where all maps and values per channel allow it, else single elements.
template <class T, class F>
void with_access(const Layout& layout, std::initializer_list<const void*> pointers, F&& f) {
  constexpr int kVec = 16 / sizeof(T);
  bool wide = (layout.rows ? layout.channels : layout.inner) % kVec == 0;
  for (const void* pointer : pointers) wide = wide && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  if (!layout.rows) return wide ? f(Access<kVec, true>{layout, 1}) : f(Access<1, true>{layout, 1});
  int lanes = 1;
  while (lanes < kMostLanes && lanes * (wide ? kVec : 1) < layout.channels) lanes *= 2;
  return wide ? f(Access<kVec, false>{layout, lanes}) : f(Access<1, false>{layout, lanes});
}

unsigned join_blocks(int64_t channels) { return blocks_for(channels * 32, kJoinThreads); }

std::tuple<Tensor, Tensor> abn_statistics(const Tensor& x) {
  const Layout layout = layout_of(x, "abn_statistics");
  const DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(x);
  Tensor mean = torch::stable::new_empty(x, {layout.channels}, wide_type(x));
  Tensor var = torch::stable::new_empty(x, {layout.channels}, wide_type(x));
  if (layout.channels == 0) return {mean, var};
  dispatch_floating(x, "abn_statistics", [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    with_access<T>(layout, {data<T>(x)}, [&](auto access) {
      const dim3 grid = grid_of_sums(access);
      const Tensor partial = torch::stable::new_empty(x, {layout.channels, 3, grid.y}, wide_type(x));
      SEAMSEG_LAUNCH(statistics_partial, grid, kThreads, stream, access, data<T>(x), mutable_data<W>(partial));
      SEAMSEG_LAUNCH(statistics_join<W>, join_blocks(layout.channels), kJoinThreads, stream, data<W>(partial), grid.y,
                     layout.channels, mutable_data<W>(mean), mutable_data<W>(var));
    });
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
    const T *in = data<T>(x), *more = data_or_null<T>(residual);
    T* out = mutable_data<T>(y);
    with_activation<W>(activation, parameter, op, [&](auto act) {
      with_access<T>(layout, {in, more, out, m, s, b}, [&](auto access) {
        SEAMSEG_LAUNCH(transform, grid_of(access, kWalkBlocks), kThreads, stream, access, in, more, out, m,
                       s, b, act);
      });
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
  Tensor sum = torch::stable::new_empty(y, {layout.channels}, wide_type(y));
  Tensor moment = torch::stable::new_empty(y, {layout.channels}, wide_type(y));
  Tensor squares = torch::stable::new_empty(y, {layout.channels}, wide_type(y));
  dispatch_floating(y, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W* b = per_channel<W>(bias, y, layout.channels, op, "bias");
    if (layout.channels == 0) return;
    const T *above = data<T>(dy), *out = data<T>(y), *more = data_or_null<T>(residual);
    with_activation<W>(activation, parameter, op, [&](auto act) {
      with_access<T>(layout, {above, out, more, b}, [&](auto access) {
        const dim3 grid = grid_of_sums(access);
        const Tensor partial = torch::stable::new_empty(y, {layout.channels, 3, grid.y}, wide_type(y));
        SEAMSEG_LAUNCH(reduce_partial, grid, kThreads, stream, access, above, out, more, b, act,
                       mutable_data<W>(partial));
        SEAMSEG_LAUNCH(reduce_join<W>, join_blocks(layout.channels), kJoinThreads, stream, data<W>(partial), grid.y,
                       layout.channels, mutable_data<W>(sum), mutable_data<W>(moment), mutable_data<W>(squares));
      });
    });
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
    const T *above = data<T>(dy), *out = data<T>(y), *more = data_or_null<T>(residual);
    T *to = mutable_data<T>(dx), *to_residual = mutable_data<T>(dresidual);
    with_activation<W>(activation, parameter, op, [&](auto act) {
      with_access<T>(layout, {above, out, more, to, to_residual, b, s, o, k}, [&](auto access) {
        SEAMSEG_LAUNCH(backward_input, grid_of(access, kWalkBlocks), kThreads, stream, access, above, out,
                       more, to, to_residual, b, s, o, k, act);
      });
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
