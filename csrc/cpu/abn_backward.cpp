// In-place ABN backward, from the output alone: z = act^-1(y) - residual stands for the normalised input, since
// z - bias = gamma x_hat. Nothing of the size of the input is made but the gradients themselves.
//
// Threads never write the same place: a block of rows has partial sums of its own, a channel of planes has its own entry.
#include "abn.h"

namespace seamseg::abn {
namespace {

// Sums over the pixels of dz = dy act'(y), of dz (z - bias) and of act^-1(y)^2, for K channels of some rows.
template <int K, bool kResidual, class T, class A>
SEAMSEG_INLINE void reduce_columns(const T* SEAMSEG_RESTRICT dy, const T* SEAMSEG_RESTRICT y,
                                   const T* SEAMSEG_RESTRICT residual, int64_t rows, int64_t channels,
                                   const wide_t<T>* SEAMSEG_RESTRICT bias, A activation,
                                   wide_t<T>* SEAMSEG_RESTRICT sum, wide_t<T>* SEAMSEG_RESTRICT moment,
                                   wide_t<T>* SEAMSEG_RESTRICT squares) {
  using W = wide_t<T>;
  W total[K] = {}, weighted[K] = {}, squared[K] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t start = r * channels;
    for (int k = 0; k < K; ++k) {
      const W out = load(y + start + k);
      const W dz = load(dy + start + k) * activation.slope_at(out);
      const W before = activation.invert(out);
      W z = before - bias[k];
      if constexpr (kResidual) z -= load(residual + start + k);
      total[k] += dz;
      weighted[k] += dz * z;
      squared[k] += before * before;
    }
  }
  for (int k = 0; k < K; ++k) {
    sum[k] = total[k];
    moment[k] = weighted[k];
    squares[k] = squared[k];
  }
}

template <bool kResidual, class T, class A>
SEAMSEG_CLONES void reduce_rows(const T* SEAMSEG_RESTRICT dy, const T* SEAMSEG_RESTRICT y,
                                const T* SEAMSEG_RESTRICT residual, int64_t rows, int64_t channels,
                                const wide_t<T>* SEAMSEG_RESTRICT bias, A activation,
                                wide_t<T>* SEAMSEG_RESTRICT sum, wide_t<T>* SEAMSEG_RESTRICT moment,
                                wide_t<T>* SEAMSEG_RESTRICT squares) {
  int64_t c = 0;
  for (; c + kColumns <= channels; c += kColumns) {
    reduce_columns<kColumns, kResidual>(dy + c, y + c, kResidual ? residual + c : nullptr, rows, channels, bias + c,
                                        activation, sum + c, moment + c, squares + c);
  }
  for (; c < channels; ++c) {
    reduce_columns<1, kResidual>(dy + c, y + c, kResidual ? residual + c : nullptr, rows, channels, bias + c, activation,
                                 sum + c, moment + c, squares + c);
  }
}

template <bool kResidual, class T, class A>
SEAMSEG_CLONES void reduce_span(const T* SEAMSEG_RESTRICT dy, const T* SEAMSEG_RESTRICT y,
                                const T* SEAMSEG_RESTRICT residual, int64_t count, wide_t<T> bias, A activation,
                                double* sum, double* moment, double* squares) {
  using W = wide_t<T>;
  W total = 0, weighted = 0, squared = 0;
#pragma omp simd reduction(+ : total, weighted, squared)
  for (int64_t i = 0; i < count; ++i) {
    const W out = load(y + i);
    const W dz = load(dy + i) * activation.slope_at(out);
    const W before = activation.invert(out);
    W z = before - bias;
    if constexpr (kResidual) z -= load(residual + i);
    total += dz;
    weighted += dz * z;
    squared += before * before;
  }
  *sum += total;
  *moment += weighted;
  *squares += squared;
}

template <bool kResidual, class T, class A>
void reduce(const T* dy, const T* y, const T* residual, const Layout& layout, const wide_t<T>* bias, A activation,
            wide_t<T>* sum, wide_t<T>* moment, wide_t<T>* squares) {
  using W = wide_t<T>;
  const int64_t channels = layout.channels;
  if (layout.rows) {
    const int64_t blocks = block_count(layout);
    std::vector<W> partial(3 * blocks * channels);
    for_row_blocks(layout, [&](int64_t block, int64_t first, int64_t last) {
      const int64_t start = first * channels;
      W* own = partial.data() + 3 * block * channels;
      reduce_rows<kResidual>(dy + start, y + start, kResidual ? residual + start : nullptr, last - first, channels, bias,
                             activation, own, own + channels, own + 2 * channels);
    });
    for (int64_t c = 0; c < channels; ++c) {
      double total = 0, weighted = 0, squared = 0;
      for (int64_t block = 0; block < blocks; ++block) {
        const W* own = partial.data() + 3 * block * channels + c;
        total += own[0];
        weighted += own[channels];
        squared += own[2 * channels];
      }
      sum[c] = static_cast<W>(total);
      moment[c] = static_cast<W>(weighted);
      squares[c] = static_cast<W>(squared);
    }
    return;
  }
  for_channels(layout, [&](int64_t c) {
    constexpr int64_t kSpan = 8192;
    double total = 0, weighted = 0, squared = 0;
    for (int64_t n = 0; n < layout.outer; ++n) {
      const int64_t plane = (n * channels + c) * layout.inner;
      for (int64_t i = 0; i < layout.inner; i += kSpan) {
        reduce_span<kResidual>(dy + plane + i, y + plane + i, kResidual ? residual + plane + i : nullptr,
                               std::min(kSpan, layout.inner - i), bias[c], activation, &total, &weighted, &squared);
      }
    }
    sum[c] = static_cast<W>(total);
    moment[c] = static_cast<W>(weighted);
    squares[c] = static_cast<W>(squared);
  });
}

std::tuple<Tensor, Tensor, Tensor> abn_backward_reduce(const Tensor& dy, const Tensor& y, std::optional<Tensor> residual,
                                                       const Tensor& bias, int64_t activation, double parameter) {
  const char* op = "abn_backward_reduce";
  const Layout layout = layout_of(y, op);
  check_like(dy, y, op, "dy");
  if (residual.has_value()) check_like(*residual, y, op, "residual");
  const ScalarType type = wide_type(y);
  Tensor sum = torch::stable::new_empty(y, {layout.channels}, type);
  Tensor moment = torch::stable::new_empty(y, {layout.channels}, type);
  Tensor squares = torch::stable::new_empty(y, {layout.channels}, type);
  dispatch_floating(y, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W* b = per_channel<W>(bias, y, layout.channels, op, "bias");
    W* s = mutable_data<W>(sum);
    W* m = mutable_data<W>(moment);
    W* q = mutable_data<W>(squares);
    with_activation<W>(activation, parameter, op, [&](auto act) {
      if (residual.has_value()) {
        reduce<true>(data<T>(dy), data<T>(y), data<T>(*residual), layout, b, act, s, m, q);
      } else {
        reduce<false, T>(data<T>(dy), data<T>(y), nullptr, layout, b, act, s, m, q);
      }
    });
  });
  return {sum, moment, squares};
}

// What a channel's gradient is made of: dx = scale dz + offset + slope (z - bias).
template <class W>
struct Coefficients {
  const W *bias, *scale, *offset, *slope;
};

template <bool kResidual, class T, class A>
SEAMSEG_CLONES void backward_rows(const T* SEAMSEG_RESTRICT dy, const T* SEAMSEG_RESTRICT y,
                                  const T* SEAMSEG_RESTRICT residual, T* SEAMSEG_RESTRICT dx,
                                  T* SEAMSEG_RESTRICT dresidual, int64_t rows, int64_t channels,
                                  const wide_t<T>* SEAMSEG_RESTRICT bias, const wide_t<T>* SEAMSEG_RESTRICT scale,
                                  const wide_t<T>* SEAMSEG_RESTRICT offset, const wide_t<T>* SEAMSEG_RESTRICT slope,
                                  A activation) {
  using W = wide_t<T>;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t start = r * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const W out = load(y + start + c);
      const W dz = load(dy + start + c) * activation.slope_at(out);
      W z = activation.invert(out) - bias[c];
      if constexpr (kResidual) {
        z -= load(residual + start + c);
        store(dresidual + start + c, dz);
      }
      store(dx + start + c, scale[c] * dz + (offset[c] + slope[c] * z));
    }
  }
}

template <bool kResidual, class T, class A>
SEAMSEG_CLONES void backward_span(const T* SEAMSEG_RESTRICT dy, const T* SEAMSEG_RESTRICT y,
                                  const T* SEAMSEG_RESTRICT residual, T* SEAMSEG_RESTRICT dx,
                                  T* SEAMSEG_RESTRICT dresidual, int64_t count, wide_t<T> bias, wide_t<T> scale,
                                  wide_t<T> offset, wide_t<T> slope, A activation) {
  using W = wide_t<T>;
  for (int64_t i = 0; i < count; ++i) {
    const W out = load(y + i);
    const W dz = load(dy + i) * activation.slope_at(out);
    W z = activation.invert(out) - bias;
    if constexpr (kResidual) {
      z -= load(residual + i);
      store(dresidual + i, dz);
    }
    store(dx + i, scale * dz + (offset + slope * z));
  }
}

template <bool kResidual, class T, class A>
void backward(const T* dy, const T* y, const T* residual, T* dx, T* dresidual, const Layout& layout,
              const Coefficients<wide_t<T>>& k, A activation) {
  const int64_t channels = layout.channels;
  if (layout.rows) {
    for_row_blocks(layout, [&](int64_t, int64_t first, int64_t last) {
      const int64_t i = first * channels;
      backward_rows<kResidual>(dy + i, y + i, kResidual ? residual + i : nullptr, dx + i,
                               kResidual ? dresidual + i : nullptr, last - first, channels, k.bias, k.scale, k.offset,
                               k.slope, activation);
    });
    return;
  }
  for_channels(layout, [&](int64_t c) {
    for (int64_t n = 0; n < layout.outer; ++n) {
      const int64_t i = (n * channels + c) * layout.inner;
      backward_span<kResidual>(dy + i, y + i, kResidual ? residual + i : nullptr, dx + i,
                               kResidual ? dresidual + i : nullptr, layout.inner, k.bias[c], k.scale[c], k.offset[c],
                               k.slope[c], activation);
    }
  });
}

// The gradients of the input and, where there is a residual, of it (an empty tensor otherwise).
std::tuple<Tensor, Tensor> abn_backward_input(const Tensor& dy, const Tensor& y, std::optional<Tensor> residual,
                                              const Tensor& bias, const Tensor& scale, const Tensor& offset,
                                              const Tensor& slope, int64_t activation, double parameter) {
  const char* op = "abn_backward_input";
  const Layout layout = layout_of(y, op);
  check_like(dy, y, op, "dy");
  if (residual.has_value()) check_like(*residual, y, op, "residual");
  Tensor dx = torch::stable::empty_like(y);
  Tensor dresidual = residual.has_value() ? torch::stable::empty_like(y) : torch::stable::new_empty(y, {0});
  dispatch_floating(y, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const int64_t channels = layout.channels;
    const Coefficients<W> k{per_channel<W>(bias, y, channels, op, "bias"), per_channel<W>(scale, y, channels, op, "scale"),
                            per_channel<W>(offset, y, channels, op, "offset"),
                            per_channel<W>(slope, y, channels, op, "slope")};
    with_activation<W>(activation, parameter, op, [&](auto act) {
      if (residual.has_value()) {
        backward<true>(data<T>(dy), data<T>(y), data<T>(*residual), mutable_data<T>(dx), mutable_data<T>(dresidual),
                       layout, k, act);
      } else {
        backward<false, T>(data<T>(dy), data<T>(y), nullptr, mutable_data<T>(dx), nullptr, layout, k, act);
      }
    });
  });
  return {dx, dresidual};
}

}  // namespace
}  // namespace seamseg::abn

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("abn_backward_reduce", TORCH_BOX(&seamseg::abn::abn_backward_reduce));
  m.impl("abn_backward_input", TORCH_BOX(&seamseg::abn::abn_backward_input));
}
