// In-place ABN on the device: the arithmetic per channel between the kernels over maps.
#pragma once

#include "../abn_channels.h"
#include "device.cuh"

namespace seamseg::abn {

constexpr int kChannelThreads = 256;

// One block: the counter of batches is read by all of its threads before it changes.
template <class W, class R>
__global__ void forward_channels(Forward<W> forward, int64_t channels, R* running_mean, R* running_var) {
  const int64_t seen = forward.seen();
  __syncthreads();
  const bool averaged = forward.averaged();
  const double share = forward.share(seen);
  if (threadIdx.x == 0 && forward.batches != nullptr && forward.counted()) *forward.batches = seen;
  for (int64_t c = threadIdx.x; c < channels; c += blockDim.x) {
    forward.normalise(c);
    if (averaged) forward.average(c, running_mean, running_var, share);
  }
}

template <class W>
__global__ void backward_channels(Backward<W> backward) {
  for (int64_t c = grid_start(); c < backward.channels; c += grid_step()) backward(c);
}

// A block a channel, whose kernel is read only if the factor is not 0.
template <class T>
__global__ void scale_gradient(const T* kernel, const T* dkernel, int64_t inner, int64_t channels,
                               const wide_t<T>* dweight, wide_t<T>* result) {
  using W = wide_t<T>;
  __shared__ W sums[kChannelThreads];
  const int t = threadIdx.x;
  for (int64_t c = blockIdx.x; c < channels; c += gridDim.x) {
    const W factor = dweight[channels + c];
    if (factor == W(0)) {  // for all threads of the block
      if (t == 0) result[c] = dweight[c];
      continue;
    }
    W sum = 0;
    for (int64_t i = t; i < inner; i += kChannelThreads) {
      sum += static_cast<W>(kernel[c * inner + i]) * static_cast<W>(dkernel[c * inner + i]);
    }
    sums[t] = sum;
    for (int half = kChannelThreads / 2; half >= 1; half /= 2) {
      __syncthreads();
      if (t < half) sums[t] += sums[t + half];
    }
    if (t == 0) result[c] = dweight[c] + sums[0] * factor;
    __syncthreads();
  }
}

}  // namespace seamseg::abn
