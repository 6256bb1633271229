// Tensors on the host side of every kernel, through the stable ABI of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "types.h"

namespace seamseg {

using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Call f with a value of the element type: `dispatch_floating(x, "op", [&](auto zero) { using T = decltype(zero); ... })`
template <class F>
void dispatch_floating(const Tensor& x, const char* op, F&& f) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Double:
      return f(double{});
    case ScalarType::BFloat16:
      return f(BFloat16{});
    case ScalarType::Half:
      return f(Half{});
    default:
      STD_TORCH_CHECK(false, op, ": expected float32, float64, bfloat16 or float16");
  }
}

template <class F>
void dispatch_integer(const Tensor& x, const char* op, F&& f) {
  switch (x.scalar_type()) {
    case ScalarType::Bool:
    case ScalarType::Byte:
      return f(uint8_t{});
    case ScalarType::Char:
      return f(int8_t{});
    case ScalarType::Short:
      return f(int16_t{});
    case ScalarType::UInt16:
      return f(uint16_t{});
    case ScalarType::Int:
      return f(int32_t{});
    case ScalarType::UInt32:
      return f(uint32_t{});
    case ScalarType::Long:
      return f(int64_t{});
    case ScalarType::UInt64:
      return f(uint64_t{});
    default:
      STD_TORCH_CHECK(false, op, ": expected an integer or bool tensor");
  }
}

template <class T>
const T* data(const Tensor& x) {
  return static_cast<const T*>(x.data_ptr());
}
template <class T>
T* mutable_data(const Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}
template <class T>
const T* data_or_null(const std::optional<Tensor>& x) {
  return x.has_value() ? data<T>(*x) : nullptr;
}

// The type that sums over elements of x are handed over in: `wide_t` as a value.
inline ScalarType wide_type(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) return false;
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != b.size(i)) return false;
  }
  return true;
}

// A new tensor on the device of x. (torch::stable::permute is younger than our oldest torch)
inline Tensor empty_like_of(const Tensor& x, const std::vector<int64_t>& sizes, ScalarType dtype, bool channels_last) {
  const auto format = channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
  return torch::stable::empty(sizes, dtype, std::nullopt, x.device(), std::nullopt, format);
}

// Dense with the channels of a pixel beside each other.
inline bool is_channels_last(const Tensor& x) {
  if (x.dim() != 4 || x.stride(1) != 1) return false;
  int64_t expected = x.size(1);
  for (const int dim : {3, 2, 0}) {
    if (x.size(dim) != 1 && x.stride(dim) != expected) return false;
    expected *= x.size(dim);
  }
  return true;
}

}  // namespace seamseg
