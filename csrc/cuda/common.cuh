// What the host side of every CUDA kernel needs: element types, the current stream, launches that are checked.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "../tensor.h"
#include "device.cuh"

namespace seamseg {

using torch::stable::accelerator::DeviceGuard;

inline cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  const bool ok = aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream) == 0;
  STD_TORCH_CHECK(ok, "seamseg: no current CUDA stream");
  return static_cast<cudaStream_t>(stream);
}

// A failure of an earlier kernel is found here too, under the name of this one; with SEAMSEG_SYNC=1 every kernel is
// waited for, so that the name is right.
inline void check_launch(const char* kernel) {
  static const bool synchronous = [] {
    const char* wanted = std::getenv("SEAMSEG_SYNC");
    return wanted != nullptr && *wanted != '\0' && *wanted != '0';
  }();
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && synchronous) error = cudaDeviceSynchronize();
  STD_TORCH_CHECK(error == cudaSuccess, "CUDA error: ", kernel, ": ", cudaGetErrorString(error));
}

// Blocks for `count` elements in a grid-stride loop; never 0, never more than a launch can take.
inline unsigned blocks_for(int64_t count, int threads) {
  const int64_t blocks = (count + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > 65535 * 16 ? 65535 * 16 : blocks));
}

// SEAMSEG_LAUNCH(kernel<float>, blocks, threads, stream, arguments...): launch and report a refused launch.
#define SEAMSEG_LAUNCH(kernel, blocks, threads, stream, ...) \
  do {                                                       \
    kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__); \
    ::seamseg::check_launch(#kernel);                        \
  } while (0)

}  // namespace seamseg
