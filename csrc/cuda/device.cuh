// What CUDA kernels need on the device side. Kernels live in *_kernels.cuh and use nothing of torch but its half types.
#pragma once

#include "../types.h"

namespace seamseg {

// The first element of this thread in a grid-stride loop, and the step to its next.
__device__ __forceinline__ int64_t grid_start() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t grid_step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace seamseg
