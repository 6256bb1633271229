// Average pooling of stride 1 with its replicate padding, and the adjoint: the host side.
#include <algorithm>

#include "common.cuh"
#include "pooling_kernels.cuh"

namespace seamseg {
namespace {

constexpr int kThreads = 256;

struct Geometry {
  bool last;                             // channels last
  int64_t outer, rows, columns, inner;   // see pooling_kernels.cuh
  int64_t k_y, k_x, places_y, places_x;  // the window, clipped to the map, and how many places it has
};

Geometry geometry(const char* op, const Tensor& x, int64_t height, int64_t width) {
  STD_TORCH_CHECK(x.dim() == 4 && x.size(2) > 0 && x.size(3) > 0, op, ": expected N x C x H x W with pixels");
  STD_TORCH_CHECK(height > 0 && width > 0, op, ": the window must be positive");
  Geometry g;
  g.last = !x.is_contiguous();
  g.outer = g.last ? x.size(0) : x.size(0) * x.size(1);
  g.inner = g.last ? x.size(1) : 1;
  g.rows = x.size(2);
  g.columns = x.size(3);
  g.k_y = std::min(height, g.rows);
  g.k_x = std::min(width, g.columns);
  g.places_y = g.rows - g.k_y + 1;
  g.places_x = g.columns - g.k_x + 1;
  return g;
}

Tensor dense(const Tensor& x, bool last) {
  return last ? torch::stable::contiguous(x, MemoryFormat::ChannelsLast) : x;
}

Tensor empty_as(const Tensor& x, bool last) {
  return empty_like_of(x, {x.size(0), x.size(1), x.size(2), x.size(3)}, x.scalar_type(), last);
}

template <class W>
Tensor empty_sums(const Tensor& x, int64_t count) {
  return torch::stable::new_empty(x, {count}, std::is_same_v<W, double> ? ScalarType::Double : ScalarType::Float);
}

template <class T, class W>
void sum_columns(cudaStream_t stream, const Tensor& rows, const PoolAcross& across, const Geometry& g, Tensor& y) {
  const int64_t runs = (across.columns + kPoolRun - 1) / kPoolRun, count = g.outer * across.rows * runs * g.inner;
  const W factor = W{1} / (static_cast<W>(g.k_y) * static_cast<W>(g.k_x));
  SEAMSEG_LAUNCH((pool_across<W, T>), blocks_for(count, kThreads), kThreads, stream, data<W>(rows), across, count,
                 factor, mutable_data<T>(y));
}

Tensor box_filter_pool(const Tensor& source, int64_t height, int64_t width) {
  const Geometry g = geometry("box_filter_pool", source, height, width);
  const DeviceGuard guard(source.get_device_index());
  const cudaStream_t stream = current_stream(source);
  const Tensor x = dense(source, g.last);
  Tensor y = empty_as(x, g.last);
  if (x.numel() == 0) return y;
  dispatch_floating(x, "box_filter_pool", [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const int64_t length = g.columns * g.inner, blocks = (g.places_y + g.k_y - 1) / g.k_y;
    const Tensor sums = empty_sums<W>(x, g.outer * g.places_y * length);
    SEAMSEG_LAUNCH((pool_down<T, W>), blocks_for(g.outer * blocks * length, kThreads), kThreads, stream, data<T>(x),
                   g.outer, g.rows, length, g.k_y, 0, g.places_y, mutable_data<W>(sums));
    const PoolAcross across{g.places_y, g.columns,  g.rows,           g.columns,        g.inner,
                            g.k_x,      g.places_x, (g.k_y - 1) / 2, (g.k_x - 1) / 2, 0};
    sum_columns<T, W>(stream, sums, across, g, y);
  });
  return y;
}

Tensor box_filter_pool_backward(const Tensor& source, int64_t height, int64_t width) {
  const Geometry g = geometry("box_filter_pool_backward", source, height, width);
  const DeviceGuard guard(source.get_device_index());
  const cudaStream_t stream = current_stream(source);
  const Tensor dy = dense(source, g.last);
  Tensor dx = empty_as(dy, g.last);
  if (dy.numel() == 0) return dx;
  dispatch_floating(dy, "box_filter_pool_backward", [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const int64_t length = g.places_x * g.inner, blocks = (g.rows + g.k_y - 1) / g.k_y;
    const int64_t folded = g.outer * g.places_y * length;
    const Tensor inside = empty_sums<W>(dy, folded), sums = empty_sums<W>(dy, g.outer * g.rows * length);
    SEAMSEG_LAUNCH((pool_fold<T, W>), blocks_for(folded, kThreads), kThreads, stream, data<T>(dy), g.rows, g.columns,
                   g.inner, g.places_y, g.places_x, (g.k_y - 1) / 2, (g.k_x - 1) / 2, folded, mutable_data<W>(inside));
    SEAMSEG_LAUNCH((pool_down<W, W>), blocks_for(g.outer * blocks * length, kThreads), kThreads, stream,
                   data<W>(inside), g.outer, g.places_y, length, g.k_y, g.k_y - 1, g.rows, mutable_data<W>(sums));
    const PoolAcross across{g.rows, g.places_x, g.rows, g.columns, g.inner, g.k_x, g.places_x, 0, g.k_x - 1, 1 - g.k_x};
    sum_columns<T, W>(stream, sums, across, g, dx);
  });
  return dx;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("box_filter_pool", TORCH_BOX(&seamseg::box_filter_pool));
  m.impl("box_filter_pool_backward", TORCH_BOX(&seamseg::box_filter_pool_backward));
}
