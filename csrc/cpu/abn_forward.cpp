// In-place ABN forward: the statistics of a batch, and normalisation + residual + activation in one walk.
//
// Threads never write the same place: a block of rows has partial sums of its own, a channel of planes has its own entry.
#include "abn.h"

namespace seamseg::abn {
namespace {

// Mean and sum of squared differences of channels `c .. c + K - 1` of some rows, in two passes over a block that stays in
// the cache. K is a constant, so that the sums stay in registers. What the first pass lost in rounding, much where the mean
// is far from zero, is the sum of the differences of the second.
template <int K, class T>
SEAMSEG_INLINE void statistics_of_columns(const T* SEAMSEG_RESTRICT x, int64_t rows, int64_t channels,
                                          wide_t<T>* SEAMSEG_RESTRICT mean, wide_t<T>* SEAMSEG_RESTRICT squares) {
  using W = wide_t<T>;
  W sum[K] = {}, lost[K] = {}, rest[K] = {};
  for (int64_t r = 0; r < rows; ++r) {
    for (int k = 0; k < K; ++k) sum[k] += load(x + r * channels + k);
  }
  const W share = W(1) / static_cast<W>(rows);
  for (int k = 0; k < K; ++k) sum[k] *= share;
  for (int64_t r = 0; r < rows; ++r) {
    for (int k = 0; k < K; ++k) {
      const W difference = load(x + r * channels + k) - sum[k];
      lost[k] += difference;
      rest[k] += difference * difference;
    }
  }
  for (int k = 0; k < K; ++k) {
    mean[k] = sum[k] + lost[k] * share;
    const W exact = rest[k] - lost[k] * (lost[k] * share);
    squares[k] = exact < W(0) ? W(0) : exact;
  }
}

template <class T>
SEAMSEG_CLONES void statistics_of_rows(const T* SEAMSEG_RESTRICT x, int64_t rows, int64_t channels,
                                       wide_t<T>* SEAMSEG_RESTRICT mean, wide_t<T>* SEAMSEG_RESTRICT squares) {
  int64_t c = 0;
  for (; c + kColumns <= channels; c += kColumns) {
    statistics_of_columns<kColumns>(x + c, rows, channels, mean + c, squares + c);
  }
  for (; c < channels; ++c) statistics_of_columns<1>(x + c, rows, channels, mean + c, squares + c);
}

template <class T>
SEAMSEG_CLONES void statistics_of_span(const T* SEAMSEG_RESTRICT x, int64_t count, double* mean, double* squares) {
  using W = wide_t<T>;
  W sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += load(x + i);
  const W centre = sum / static_cast<W>(count);
  W lost = 0, rest = 0;
#pragma omp simd reduction(+ : lost, rest)
  for (int64_t i = 0; i < count; ++i) {
    const W difference = load(x + i) - centre;
    lost += difference;
    rest += difference * difference;
  }
  const double shift = static_cast<double>(lost) / static_cast<double>(count);
  *mean = centre + shift;
  *squares = rest - lost * shift < 0 ? 0.0 : rest - lost * shift;
}

// Chan, Golub and LeVeque 1979: statistics of two parts joined without cancellation.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  void join(double n, double m, double s) {
    const double total = count + n, difference = m - mean;
    mean += difference * n / total;
    squares += s + difference * difference * count * n / total;
    count = total;
  }
};

template <class T>
void statistics(const T* x, const Layout& layout, wide_t<T>* mean, wide_t<T>* var) {
  using W = wide_t<T>;
  const int64_t channels = layout.channels;
  if (layout.rows) {
    const int64_t blocks = block_count(layout), rows = block_rows(layout);
    std::vector<W> partial(2 * blocks * channels);
    for_row_blocks(layout, [&](int64_t block, int64_t first, int64_t last) {
      W* own = partial.data() + 2 * block * channels;
      statistics_of_rows(x + first * channels, last - first, channels, own, own + channels);
    });
    for (int64_t c = 0; c < channels; ++c) {
      Moments all;
      for (int64_t block = 0; block < blocks; ++block) {
        const W* own = partial.data() + 2 * block * channels;
        const int64_t count = std::min(layout.outer, (block + 1) * rows) - block * rows;
        all.join(static_cast<double>(count), own[c], own[channels + c]);
      }
      mean[c] = static_cast<W>(all.mean);
      var[c] = static_cast<W>(all.count > 0 ? all.squares / all.count : 0);
    }
    return;
  }
  for_channels(layout, [&](int64_t c) {
    constexpr int64_t kSpan = 8192;
    Moments all;
    for (int64_t n = 0; n < layout.outer; ++n) {
      const T* plane = x + (n * channels + c) * layout.inner;
      for (int64_t start = 0; start < layout.inner; start += kSpan) {
        const int64_t count = std::min(kSpan, layout.inner - start);
        double m, s;
        statistics_of_span(plane + start, count, &m, &s);
        all.join(static_cast<double>(count), m, s);
      }
    }
    mean[c] = static_cast<W>(all.mean);
    var[c] = static_cast<W>(all.count > 0 ? all.squares / all.count : 0);
  });
}

std::tuple<Tensor, Tensor> abn_statistics(const Tensor& x) {
  const Layout layout = layout_of(x, "abn_statistics");
  const ScalarType type = wide_type(x);
  Tensor mean = torch::stable::new_empty(x, {layout.channels}, type);
  Tensor var = torch::stable::new_empty(x, {layout.channels}, type);
  dispatch_floating(x, "abn_statistics", [&](auto zero) {
    using T = decltype(zero);
    statistics(data<T>(x), layout, mutable_data<wide_t<T>>(mean), mutable_data<wide_t<T>>(var));
  });
  return {mean, var};
}

template <bool kResidual, class T, class A>
SEAMSEG_CLONES void transform_rows(const T* SEAMSEG_RESTRICT x, const T* SEAMSEG_RESTRICT residual,
                                   T* SEAMSEG_RESTRICT y, int64_t rows, int64_t channels,
                                   const wide_t<T>* SEAMSEG_RESTRICT mean, const wide_t<T>* SEAMSEG_RESTRICT scale,
                                   const wide_t<T>* SEAMSEG_RESTRICT bias, A activation) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t start = r * channels;
    for (int64_t c = 0; c < channels; ++c) {
      wide_t<T> z = (load(x + start + c) - mean[c]) * scale[c] + bias[c];
      if constexpr (kResidual) z += load(residual + start + c);
      store(y + start + c, activation.apply(z));
    }
  }
}

template <bool kResidual, class T, class A>
SEAMSEG_CLONES void transform_span(const T* SEAMSEG_RESTRICT x, const T* SEAMSEG_RESTRICT residual,
                                   T* SEAMSEG_RESTRICT y, int64_t count, wide_t<T> mean, wide_t<T> scale,
                                   wide_t<T> bias, A activation) {
  for (int64_t i = 0; i < count; ++i) {
    wide_t<T> z = (load(x + i) - mean) * scale + bias;
    if constexpr (kResidual) z += load(residual + i);
    store(y + i, activation.apply(z));
  }
}

template <bool kResidual, class T, class A>
void transform(const T* x, const T* residual, T* y, const Layout& layout, const wide_t<T>* mean,
               const wide_t<T>* scale, const wide_t<T>* bias, A activation) {
  const int64_t channels = layout.channels;
  if (layout.rows) {
    for_row_blocks(layout, [&](int64_t, int64_t first, int64_t last) {
      const int64_t start = first * channels;
      transform_rows<kResidual>(x + start, kResidual ? residual + start : nullptr, y + start, last - first, channels,
                                mean, scale, bias, activation);
    });
    return;
  }
  for_channels(layout, [&](int64_t c) {
    for (int64_t n = 0; n < layout.outer; ++n) {
      const int64_t start = (n * channels + c) * layout.inner;
      transform_span<kResidual>(x + start, kResidual ? residual + start : nullptr, y + start, layout.inner, mean[c],
                                scale[c], bias[c], activation);
    }
  });
}

Tensor abn_transform(const Tensor& x, const Tensor& mean, const Tensor& scale, const Tensor& bias,
                     std::optional<Tensor> residual, int64_t activation, double parameter) {
  const char* op = "abn_transform";
  const Layout layout = layout_of(x, op);
  if (residual.has_value()) check_like(*residual, x, op, "residual");
  Tensor y = torch::stable::empty_like(x);
  dispatch_floating(x, op, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W* m = per_channel<W>(mean, x, layout.channels, op, "mean");
    const W* s = per_channel<W>(scale, x, layout.channels, op, "scale");
    const W* b = per_channel<W>(bias, x, layout.channels, op, "bias");
    with_activation<W>(activation, parameter, op, [&](auto act) {
      if (residual.has_value()) {
        transform<true>(data<T>(x), data<T>(*residual), mutable_data<T>(y), layout, m, s, b, act);
      } else {
        transform<false, T>(data<T>(x), nullptr, mutable_data<T>(y), layout, m, s, b, act);
      }
    });
  });
  return y;
}

}  // namespace
}  // namespace seamseg::abn

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("abn_statistics", TORCH_BOX(&seamseg::abn::abn_statistics));
  m.impl("abn_transform", TORCH_BOX(&seamseg::abn::abn_transform));
}
