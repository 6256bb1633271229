// Kernels whose faults the emulator has to find, and one whose launch fails.
#include <string>

namespace seamseg {
namespace {

constexpr int kThreads = 64;

__global__ void atomic_sum(const float* x, int64_t count, float* out) {
  for (int64_t i = grid_start(); i < count; i += grid_step()) atomicAdd(out, x[i]);
}

__global__ void past_the_end(const float* x, int64_t count, float* out) {
  if (grid_start() <= count) out[0] = x[grid_start()];
}

__global__ void barrier_for_some(const float* x, int64_t count, float* out) {
  if (grid_start() >= count) return;
  __syncthreads();
  out[grid_start()] = x[grid_start()];
}

__global__ void no_barrier(const float* x, int64_t count, float* out) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = grid_start() < count ? x[grid_start()] : 0.0f;
  if (grid_start() < count) out[grid_start()] = part[(threadIdx.x + 1) % kThreads];
}

#define SEAMSEG_EXAMPLE(kernel)                                                                              \
  if (name.starts_with(#kernel)) {                                                                           \
    SEAMSEG_LAUNCH(kernel, 2, kThreads, stream, data<float>(x), x.numel(), mutable_data<float>(out));        \
  }

Tensor example(const std::string& name, const Tensor& x) {
  const cudaStream_t stream = current_stream(x);
  Tensor out = torch::stable::new_empty(x, {x.numel()}, ScalarType::Float);
  torch::stable::fill_(out, 0);
  if (name == "atomic_sum, refused") emulation::launch_error = 9;
  if (name == "atomic_sum, failing") emulation::kernel_error = 9;
  SEAMSEG_EXAMPLE(atomic_sum)
  SEAMSEG_EXAMPLE(past_the_end)
  SEAMSEG_EXAMPLE(barrier_for_some)
  SEAMSEG_EXAMPLE(no_barrier)
  return out;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("example", TORCH_BOX(&seamseg::example)); }
