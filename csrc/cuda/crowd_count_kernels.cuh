// Crowd pixels in boxes: an integral image, along the rows and then down the columns, and four reads a box.
#pragma once

#include "boxes_kernels.cuh"

namespace seamseg {

constexpr int kRowThreads = 256;

// integral: (height + 1) x (width + 1), its first row and column 0. A block sums up a row, each of its kRowThreads
// threads a stretch.
template <class S>
__global__ void sum_rows(const S* mask, int64_t height, int64_t width, int32_t* integral) {
  __shared__ int32_t sums[kRowThreads];
  const int thread = threadIdx.x;
  const int64_t begin = width * thread / kRowThreads, end = width * (thread + 1) / kRowThreads;
  for (int64_t y = blockIdx.x; y < height; y += gridDim.x) {
    const S* row = mask + y * width;
    int32_t sum = 0;
    for (int64_t x = begin; x < end; ++x) sum += row[x] != 0;
    sums[thread] = sum;
    __syncthreads();
    int32_t before = 0;
    for (int k = 0; k < thread; ++k) before += sums[k];
    __syncthreads();
    int32_t* out = integral + (y + 1) * (width + 1) + 1;
    for (int64_t x = begin; x < end; ++x) {
      before += row[x] != 0;
      out[x] = before;
    }
  }
}

// A thread a column, which reads kColumnBatch rows before it writes them.
constexpr int kColumnBatch = 32;

__global__ void sum_columns(int32_t* integral, int64_t height, int64_t width) {
  const int64_t stride = width + 1;
  for (int64_t x = 1 + grid_start(); x <= width; x += grid_step()) {
    int32_t* p = integral + stride + x;
    int32_t sum = 0;
    int64_t y = 0;
    for (; y + kColumnBatch <= height; y += kColumnBatch, p += kColumnBatch * stride) {
      int32_t values[kColumnBatch];
#pragma unroll
      for (int k = 0; k < kColumnBatch; ++k) values[k] = p[k * stride];
#pragma unroll
      for (int k = 0; k < kColumnBatch; ++k) p[k * stride] = sum += values[k];
    }
    for (; y < height; ++y, p += stride) *p = sum += *p;
  }
}

// A corner cut to [0, size] and truncated; NaN counts as 0.
template <class T>
__device__ __forceinline__ int64_t cut_corner(T corner, int64_t size) {
  const T most = static_cast<T>(size);
  const auto inside = static_cast<int64_t>(corner > 0 ? (corner < most ? corner : most) : T(0));
  return inside < size ? inside : size;  // float may have rounded `size` up
}

template <class S>
__global__ void count_in_boxes(const S* boxes, int64_t n, const int32_t* integral, int64_t height, int64_t width,
                               int64_t* counts) {
  using T = wide_t<S>;
  for (int64_t i = grid_start(); i < n; i += grid_step()) {
    const Box<T> box = box_at<T>(boxes, i);
    const int32_t* top = integral + cut_corner(box.y0, height) * (width + 1);
    const int32_t* bottom = integral + cut_corner(box.y1, height) * (width + 1);
    const int64_t left = cut_corner(box.x0, width), right = cut_corner(box.x1, width);
    counts[i] = static_cast<int64_t>(bottom[right]) - top[right] - bottom[left] + top[left];
  }
}

}  // namespace seamseg
