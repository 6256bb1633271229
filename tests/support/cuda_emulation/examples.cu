// Kernels that are right, and kernels with one fault each: what the emulator has to tell apart.
#include <string>

namespace seamseg {
namespace {

constexpr int kThreads = 64;

// Sum of the block in its first element: by shared memory, then by the warp.
template <class T>
__global__ void block_sum(const T* x, int64_t count, T* out) {
  __shared__ T part[kThreads], total;
  const int64_t i = grid_start();
  part[threadIdx.x] = i < count ? x[i] : T{0};
  __syncthreads();
  if (threadIdx.x < 32) {
    T sum = part[threadIdx.x] + part[threadIdx.x + 32];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) total = sum;
  }
  __syncthreads();
  if (threadIdx.x == 63) out[blockIdx.x] = total;
}

// The same sum by butterflies and votes, for blocks of any size.
__global__ void warp_facts(const float* x, int64_t count, float* out) {
  const int64_t i = grid_start();
  const bool mine = i < count;
  float most = mine ? x[i] : -INFINITY;
  for (int bits = 16; bits > 0; bits /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, bits));
  const unsigned votes = __ballot_sync(0xffffffffu, mine && x[i] == most);
  if (!mine) return;
  out[i] = static_cast<float>(__popc(votes)) + 100 * __shfl_sync(0xffffffffu, most, 0);
}

__global__ void atomic_sum(const float* x, int64_t count, float* out) {
  for (int64_t i = grid_start(); i < count; i += grid_step()) atomicAdd(out, x[i]);
}

__global__ void past_the_end(const float* x, int64_t count, float* out) {
  if (grid_start() <= count) out[0] = x[grid_start()];
}

__global__ void past_the_shared_end(const float* x, int64_t count, float* out) {
  __shared__ float part[kThreads];
  float* p = part;
  p[threadIdx.x + (count > 0 ? 1 : 0)] = x[0];
  out[0] = p[0];
}

__global__ void no_barrier(const float* x, int64_t count, float* out) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = grid_start() < count ? x[grid_start()] : 0.0f;
  if (grid_start() < count) out[grid_start()] = part[(threadIdx.x + 1) % kThreads];
}

__global__ void reads_what_nobody_wrote(const float*, int64_t, float* out) {
  __shared__ float part[kThreads];
  out[0] = part[threadIdx.x];
}

__global__ void barrier_for_some(const float* x, int64_t count, float* out) {
  if (grid_start() >= count) return;
  __syncthreads();
  out[grid_start()] = x[grid_start()];
}

__global__ void two_barriers(const float*, int64_t, float*) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void exchange_in_a_branch(const float* x, int64_t, float* out) {
  if (threadIdx.x % 2 == 0) out[0] = __shfl_sync(0xffffffffu, x[0], 1);
  __syncthreads();
}

__global__ void misaligned(const float* x, int64_t, float* out) { out[0] = reinterpret_cast<const float4*>(x + 1)->x; }

__global__ void too_much_shared(const float*, int64_t, float* out) {
  __shared__ double all[48 * 128 + 1];
  all[threadIdx.x] = 0;
  out[0] = 0;
}

__global__ void checks_then_acts(const float*, int64_t, float* out) {
  if (out[0] == 0) atomicAdd(out, 1.0f);
}

#define SEAMSEG_EXAMPLE(kernel)                                                                                     \
  if (name == #kernel) {                                                                                            \
    SEAMSEG_LAUNCH(kernel, blocks_for(count, kThreads), kThreads, stream, data<float>(x), count, mutable_data<float>(out)); \
    return out;                                                                                                     \
  }

Tensor example(const std::string& name, const Tensor& x) {
  const cudaStream_t stream = current_stream(x);
  const int64_t count = x.numel();
  Tensor out = torch::stable::new_empty(x, {count}, ScalarType::Float);
  torch::stable::fill_(out, 0);
  if (name == "atomic_sum, refused") emulation::launch_error = 9;
  if (name == "atomic_sum, failing") emulation::kernel_error = 9;
  SEAMSEG_EXAMPLE(block_sum<float>)
  SEAMSEG_EXAMPLE(warp_facts)
  SEAMSEG_EXAMPLE(atomic_sum)
  SEAMSEG_EXAMPLE(past_the_end)
  SEAMSEG_EXAMPLE(past_the_shared_end)
  SEAMSEG_EXAMPLE(no_barrier)
  SEAMSEG_EXAMPLE(reads_what_nobody_wrote)
  SEAMSEG_EXAMPLE(barrier_for_some)
  SEAMSEG_EXAMPLE(two_barriers)
  SEAMSEG_EXAMPLE(exchange_in_a_branch)
  SEAMSEG_EXAMPLE(misaligned)
  SEAMSEG_EXAMPLE(too_much_shared)
  SEAMSEG_EXAMPLE(checks_then_acts)
  if (name == "no_blocks") SEAMSEG_LAUNCH(atomic_sum, 0, kThreads, stream, data<float>(x), count, mutable_data<float>(out));
  if (name.starts_with("atomic_sum, ")) {
    SEAMSEG_LAUNCH(atomic_sum, 1, kThreads, stream, data<float>(x), count, mutable_data<float>(out));
    return out;
  }
  STD_TORCH_CHECK(name == "unwritten", "no such example");
  return torch::stable::new_empty(x, {count}, ScalarType::Float);
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) { m.impl("example", TORCH_BOX(&seamseg::example)); }
