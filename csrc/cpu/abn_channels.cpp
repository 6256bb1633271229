// In-place ABN: the arithmetic per channel between the kernels over maps.
#include "../abn_arguments.h"
#include "common.h"

#include "../no_contraction.h"  // the bits of plain torch
#include "../abn_channels.h"

namespace seamseg::abn {
namespace {

template <class W, class R>
SEAMSEG_CLONES void forward_channels(const Forward<W>& forward, int64_t channels, R* running_mean, R* running_var) {
  for (int64_t c = 0; c < channels; ++c) forward.normalise(c);
  if (!forward.counted()) return;
  const int64_t seen = forward.seen();
  if (forward.batches != nullptr) *forward.batches = seen;
  if (!forward.averaged()) return;
  const double share = forward.share(seen);
  for (int64_t c = 0; c < channels; ++c) forward.average(c, running_mean, running_var, share);
}

std::tuple<Tensor, Tensor> abn_forward_channels(const Tensor& mean, const Tensor& var, std::optional<Tensor> total,
                                                std::optional<Tensor> weight, std::optional<Tensor> running_mean,
                                                std::optional<Tensor> running_var, std::optional<Tensor> batches,
                                                std::optional<double> momentum, double eps, int64_t count) {
  const int64_t channels = channels_of(mean, "abn_forward_channels");
  Tensor invstd = torch::stable::empty_like(mean), scale = torch::stable::empty_like(mean);
  const auto run = [&](auto zero) {
    with_forward<decltype(zero)>(mean, var, total, weight, running_mean, running_var, batches, momentum, eps, count, invstd,
                                 scale, [&](const auto& forward, auto* running_mean, auto* running_var) {
                                   forward_channels(forward, channels, running_mean, running_var);
                                 });
  };
  mean.scalar_type() == ScalarType::Double ? run(double{}) : run(float{});
  return {invstd, scale};
}

template <class W>
SEAMSEG_CLONES void backward_channels(const Backward<W>& backward) {
  for (int64_t c = 0; c < backward.channels; ++c) backward(c);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> abn_backward_channels(
    const Tensor& sum, const Tensor& moment, const Tensor& squares, std::optional<Tensor> joint, std::optional<Tensor> total,
    const Tensor& mean, const Tensor& invstd, std::optional<Tensor> weight, bool training, bool deferred, int64_t count,
    double local_total, double eps, double spacing) {
  channels_of(sum, "abn_backward_channels");
  const BackwardResult result(sum);
  const auto run = [&](auto zero) {
    backward_channels(backward_of<decltype(zero)>(sum, moment, squares, joint, total, mean, invstd, weight, training,
                                                  deferred, count, local_total, eps, spacing, result));
  };
  sum.scalar_type() == ScalarType::Double ? run(double{}) : run(float{});
  return {result.scale, result.offset, result.slope, result.slope_of_z, result.dweight};
}

template <class T>
SEAMSEG_CLONES wide_t<T> scalar_product(const T* a, const T* b, int64_t count) {
  using W = wide_t<T>;
  W total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; ++i) total += load(a + i) * load(b + i);
  return total;
}

Tensor abn_scale_gradient(const Tensor& kernel, const Tensor& dkernel, const Tensor& dweight) {
  const int64_t inner = check_kernel(kernel, dkernel, dweight), channels = kernel.size(0);
  Tensor result = torch::stable::new_empty(dweight, {channels}, dweight.scalar_type());
  dispatch_floating(kernel, "abn_scale_gradient", [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const T *w = data<T>(kernel), *dw = data<T>(dkernel);
    const W* given = data<W>(dweight);
    W* out = mutable_data<W>(result);
    for (int64_t c = 0; c < channels; ++c) {
      const W factor = given[channels + c];
      out[c] = given[c];
      if (factor == W(0)) continue;
      constexpr int64_t kSpan = 8192;
      double total = 0;
      for (int64_t i = 0; i < inner; i += kSpan) {
        total += scalar_product(w + c * inner + i, dw + c * inner + i, inner - i < kSpan ? inner - i : kSpan);
      }
      out[c] += static_cast<W>(total) * factor;
    }
  });
  return result;
}

}  // namespace
}  // namespace seamseg::abn

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("abn_forward_channels", TORCH_BOX(&seamseg::abn::abn_forward_channels));
  m.impl("abn_backward_channels", TORCH_BOX(&seamseg::abn::abn_backward_channels));
  m.impl("abn_scale_gradient", TORCH_BOX(&seamseg::abn::abn_scale_gradient));
}
