// Argument checks of the ABN kernels for CPU and CUDA.
#pragma once

#include "abn_layout.h"
#include "activation.h"
#include "tensor.h"

namespace seamseg::abn {

inline Layout layout_of(const Tensor& x, const char* op) {
  STD_TORCH_CHECK(x.dim() >= 2, op, ": expected N x C x ..., got ", x.dim(), " dimensions");
  int64_t inner = 1;
  for (int64_t i = 2; i < x.dim(); ++i) inner *= x.size(i);
  if (inner <= 1 && x.is_contiguous()) return {x.size(0) * inner, x.size(1), 1, true};
  if (is_channels_last(x)) return {x.size(0) * inner, x.size(1), 1, true};
  STD_TORCH_CHECK(x.is_contiguous(), op, ": expected a contiguous or channels_last tensor");
  return {x.size(0), x.size(1), inner, false};
}

inline void check_like(const Tensor& a, const Tensor& x, const char* op, const char* name) {
  bool same = a.dim() == x.dim() && a.scalar_type() == x.scalar_type() && a.device() == x.device();
  for (int64_t i = 0; same && i < x.dim(); ++i) {
    same = a.size(i) == x.size(i) && (x.size(i) == 1 || a.stride(i) == x.stride(i));
  }
  STD_TORCH_CHECK(same || (a.numel() == 0 && x.numel() == 0), op, ": ", name,
                  " must have the shape, dtype, device and memory format of the input");
}

template <class W>
const W* per_channel(const Tensor& a, const Tensor& x, int64_t channels, const char* op, const char* name) {
  constexpr ScalarType type = sizeof(W) == 8 ? ScalarType::Double : ScalarType::Float;
  STD_TORCH_CHECK(a.dim() == 1 && a.size(0) == channels && a.is_contiguous() && a.scalar_type() == type &&
                      a.device() == x.device(),
                  op, ": ", name, " must hold one ", sizeof(W) == 8 ? "float64" : "float32", " per channel (", channels,
                  ")");
  return data<W>(a);
}

template <class W, class F>
void with_activation(int64_t activation, double parameter, const char* op, F&& f) {
  switch (activation) {
    case kLeakyReLU:
      return f(LeakyReLU<W>(parameter));
    case kELU:
      return f(ELU<W>(parameter));
    default:
      STD_TORCH_CHECK(false, op, ": unknown activation ", activation);
  }
}

}  // namespace seamseg::abn
