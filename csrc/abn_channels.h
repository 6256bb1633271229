// Arithmetic of in-place ABN with one number a channel, between the kernels over maps: the same, in the same order, as
// seamseg/ops/reference/abn.py, where it is explained. On the host in files that include no_contraction.h.
#pragma once

#include <cmath>

#include "abn_arguments.h"

namespace seamseg::abn {

// Multiple of the spacing of the stored numbers below which the kernel corrects the gradient of a scale.
constexpr int kCorrected = 16;

template <class W>
SEAMSEG_HD W gamma_of(const W* weight, int64_t c, W eps) {
  return weight == nullptr ? W(1) : std::fabs(weight[c]) + eps;
}

// torch.lerp, which fuses the product and the sum.
template <class W>
SEAMSEG_HD W lerp(W from, W to, W share) {
  const bool small = std::fabs(share) < W(0.5);
  return std::fma(small ? share : share - W(1), to - from, small ? from : to);
}

template <class W>
struct Forward {
  const W *mean, *var, *weight;
  W *invstd, *scale;
  const double* total;
  int64_t* batches;
  double momentum;  // negative: plain averages over the batches
  double eps;
  int64_t count;

  SEAMSEG_HD double values() const { return total == nullptr ? static_cast<double>(count) : *total; }
  // One value has no variance: such a batch does not count.
  SEAMSEG_HD bool counted() const { return values() > 1; }
  // Batches with this one; beyond the largest number it wraps, as torch's sum does.
  SEAMSEG_HD int64_t seen() const {
    return batches == nullptr ? 0 : static_cast<int64_t>(static_cast<uint64_t>(*batches) + 1);
  }
  SEAMSEG_HD bool averaged() const { return counted() && (momentum >= 0 || batches != nullptr); }
  // Of this batch in the averages, after it was counted `seen` times.
  SEAMSEG_HD double share(int64_t seen) const { return momentum >= 0 ? momentum : 1.0 / static_cast<double>(seen < 1 ? 1 : seen); }

  SEAMSEG_HD void normalise(int64_t c) const {
    invstd[c] = W(1) / std::sqrt(var[c] + static_cast<W>(eps));
    scale[c] = gamma_of(weight, c, static_cast<W>(eps)) * invstd[c];
  }
  template <class R>
  SEAMSEG_HD void average(int64_t c, R* running_mean, R* running_var, double share) const {
    using V = wide_t<R>;
    const double n = values();
    const W unbiased = var[c] * static_cast<W>(n / (n - 1 < 1 ? 1.0 : n - 1));
    if (running_mean != nullptr) running_mean[c] = step<R, V>(running_mean[c], mean[c], share);
    if (running_var != nullptr) running_var[c] = step<R, V>(running_var[c], unbiased, share);
  }

 private:
  template <class R, class V>
  SEAMSEG_HD static R step(R average, W value, double share) {
    return static_cast<R>(lerp(static_cast<V>(average), static_cast<V>(static_cast<R>(value)), static_cast<V>(share)));
  }
};

template <class W>
struct Backward {
  const W *sum, *moment, *squares, *joint;  // joint: 4 x channels, over all ranks, or null
  const double* total;
  const W *mean, *invstd, *weight;
  W *scale, *offset, *slope, *slope_of_z, *dweight;
  int64_t channels;
  bool training, deferred;
  int64_t count;
  double local_total, eps, spacing;

  SEAMSEG_HD void operator()(int64_t c) const {
    const W small = static_cast<W>(eps), gamma = gamma_of(weight, c, small), width = gamma * invstd[c];
    W dgamma = moment[c] / gamma;
    const W all_dz = joint == nullptr ? sum[c] : joint[c];
    const W all_dgamma = joint == nullptr ? dgamma : joint[channels + c];
    const W all_squares = joint == nullptr ? squares[c] : joint[2 * channels + c];
    const W pixels = joint == nullptr ? static_cast<W>(count) : joint[3 * channels + c];
    const W lost = std::sqrt(all_squares / (pixels < W(1) ? W(1) : pixels)) * static_cast<W>(spacing);
    const W rest = W(1) - small * (invstd[c] * invstd[c]), variance = rest < W(0) ? W(0) : rest;
    const W size = gamma * std::sqrt(variance), ratio = size / lost;
    const bool corrected = size < W(kCorrected) * lost;
    const W known = size < lost ? (deferred ? W(0) : ratio * ratio) : W(1);
    dgamma = dgamma * known;
    W shift = 0, tilt = 0, covered = dgamma;
    if (training) {
      const W n = static_cast<W>(total == nullptr ? local_total : *total);
      shift = -width * (all_dz / n);
      tilt = -width * (all_dgamma / n * known);
      covered = dgamma * variance;
    } else {
      covered = -mean[c] * invstd[c] * sum[c];
    }
    if (deferred && corrected) dgamma = covered;
    const W sign = weight != nullptr && weight[c] < W(0) ? W(-1) : W(1);
    scale[c] = width;
    offset[c] = shift;
    slope[c] = tilt;
    slope_of_z[c] = tilt / gamma;
    dweight[c] = dgamma * sign;
    dweight[channels + c] = corrected ? sign / gamma : W(0);
  }
};

// Arguments and results of the operators, checked.

template <class W>
const W* per_channel_or_null(const std::optional<Tensor>& a, const Tensor& x, int64_t channels, const char* op,
                             const char* name) {
  return a.has_value() ? per_channel<W>(*a, x, channels, op, name) : nullptr;
}

template <class S>
S* scalar_or_null(const std::optional<Tensor>& a, const Tensor& x, ScalarType type, const char* op, const char* name) {
  if (!a.has_value()) return nullptr;
  STD_TORCH_CHECK(a->numel() == 1 && a->scalar_type() == type && a->device() == x.device(), op, ": ", name, " must be one ",
                  type == ScalarType::Double ? "float64" : "int64", " on the device of the others");
  return mutable_data<S>(*a);
}

inline int64_t channels_of(const Tensor& x, const char* op) {
  STD_TORCH_CHECK(x.dim() == 1, op, ": expected one number per channel, got ", x.dim(), " dimensions");
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float || x.scalar_type() == ScalarType::Double, op,
                  ": expected float32 or float64");
  return x.size(0);
}

// f(options, running_mean, running_var): pointers of the dtype of the averages, null where there are none.
template <class W, class F>
void with_forward(const Tensor& mean, const Tensor& var, const std::optional<Tensor>& total,
                  const std::optional<Tensor>& weight, const std::optional<Tensor>& running_mean,
                  const std::optional<Tensor>& running_var, const std::optional<Tensor>& batches,
                  std::optional<double> momentum, double eps, int64_t count, Tensor& invstd, Tensor& scale, F&& f) {
  const char* op = "abn_forward_channels";
  const int64_t channels = mean.size(0);
  const Forward<W> forward{per_channel<W>(mean, mean, channels, op, "mean"),
                           per_channel<W>(var, mean, channels, op, "var"),
                           per_channel_or_null<W>(weight, mean, channels, op, "weight"),
                           mutable_data<W>(invstd),
                           mutable_data<W>(scale),
                           scalar_or_null<double>(total, mean, ScalarType::Double, op, "total"),
                           scalar_or_null<int64_t>(batches, mean, ScalarType::Long, op, "batches"),
                           momentum.has_value() ? *momentum : -1.0,
                           eps,
                           count};
  const Tensor& like = running_mean.has_value() ? *running_mean : running_var.has_value() ? *running_var : mean;
  for (const auto* average : {&running_mean, &running_var}) {
    if (!average->has_value()) continue;
    const Tensor& a = **average;
    STD_TORCH_CHECK(a.dim() == 1 && a.size(0) == channels && a.is_contiguous() && a.device() == mean.device() &&
                        a.scalar_type() == like.scalar_type(),
                    op, ": running averages must hold one number per channel (", channels, "), of one dtype");
  }
  dispatch_floating(like, op, [&](auto zero) {
    using R = decltype(zero);
    f(forward, running_mean.has_value() ? mutable_data<R>(*running_mean) : nullptr,
      running_var.has_value() ? mutable_data<R>(*running_var) : nullptr);
  });
}

struct BackwardResult {
  Tensor scale, offset, slope, slope_of_z, dweight;

  explicit BackwardResult(const Tensor& x)
      : scale(torch::stable::empty_like(x)),
        offset(torch::stable::empty_like(x)),
        slope(torch::stable::empty_like(x)),
        slope_of_z(torch::stable::empty_like(x)),
        dweight(torch::stable::new_empty(x, {2, x.size(0)}, x.scalar_type())) {}
};

template <class W>
Backward<W> backward_of(const Tensor& sum, const Tensor& moment, const Tensor& squares, const std::optional<Tensor>& joint,
                        const std::optional<Tensor>& total, const Tensor& mean, const Tensor& invstd,
                        const std::optional<Tensor>& weight, bool training, bool deferred, int64_t count,
                        double local_total, double eps, double spacing, const BackwardResult& result) {
  const char* op = "abn_backward_channels";
  const int64_t channels = sum.size(0);
  const auto vector = [&](const Tensor& a, const char* name) { return per_channel<W>(a, sum, channels, op, name); };
  if (joint.has_value()) {
    STD_TORCH_CHECK(joint->dim() == 2 && joint->size(0) == 4 && joint->size(1) == channels && joint->is_contiguous() &&
                        joint->scalar_type() == sum.scalar_type() && joint->device() == sum.device(),
                    op, ": joint must be 4 x ", channels, ", in the dtype of the sums");
  }
  return {vector(sum, "sum"),
          vector(moment, "moment"),
          vector(squares, "squares"),
          data_or_null<W>(joint),
          scalar_or_null<double>(total, sum, ScalarType::Double, op, "total"),
          vector(mean, "mean"),
          vector(invstd, "invstd"),
          per_channel_or_null<W>(weight, sum, channels, op, "weight"),
          mutable_data<W>(result.scale),
          mutable_data<W>(result.offset),
          mutable_data<W>(result.slope),
          mutable_data<W>(result.slope_of_z),
          mutable_data<W>(result.dweight),
          channels,
          training,
          deferred,
          count,
          local_total,
          eps,
          spacing};
}

// The number of elements of a kernel for each of its channels.
inline int64_t check_kernel(const Tensor& kernel, const Tensor& dkernel, const Tensor& dweight) {
  const char* op = "abn_scale_gradient";
  STD_TORCH_CHECK(kernel.dim() >= 1 && (kernel.is_contiguous() || is_channels_last(kernel)), op,
                  ": expected a contiguous or channels_last kernel");
  check_like(dkernel, kernel, op, "dkernel");
  const int64_t channels = kernel.size(0);
  STD_TORCH_CHECK(dweight.dim() == 2 && dweight.size(0) == 2 && dweight.size(1) == channels && dweight.is_contiguous() &&
                      dweight.scalar_type() == wide_type(kernel) && dweight.device() == kernel.device(),
                  op, ": dweight must be 2 x ", channels, ", ",
                  kernel.scalar_type() == ScalarType::Double ? "float64" : "float32");
  int64_t inner = 1;
  for (int64_t i = 1; i < kernel.dim(); ++i) inner *= kernel.size(i);
  return inner;
}

}  // namespace seamseg::abn
