// Greedy suppression on the device, nothing is copied to the host: a block per group; or, for 257 to 16384 boxes in few
// groups, a matrix of all overlaps, which one block then walks through.
#pragma once

#include "boxes_kernels.cuh"

namespace seamseg {

constexpr int kChunk = 256;  // candidates that a block decides on together, a thread each
constexpr int kWords = kChunk / 32;
constexpr int kEmitThreads = 1024;
constexpr int kBits = 64;  // of a word of the matrix
constexpr int kMatrixRows = 256;
constexpr int kMostWords = 256;  // of a row; the matrix of 16384 boxes takes 32 MiB

template <class T>
__device__ __forceinline__ bool overlap_reaches(const Candidate<T>& a, const Candidate<T>& b, T threshold) {
  return iou_of(a, b) >= threshold;
}

// candidates[p] is the box at place p of the order by group and then score. `order` has the boxes by falling score,
// `rank` the place in it of each p (null without groups: p itself).
template <class S>
__global__ void gather_candidates(const S* boxes, int64_t n, const int64_t* order, const int64_t* rank,
                                  Candidate<wide_t<S>>* candidates) {
  for (int64_t p = grid_start(); p < n; p += grid_step()) {
    candidates[p] = candidate_at<wide_t<S>>(boxes, order[rank == nullptr ? p : rank[p]]);
  }
}

// Sets keep[r] to 1 for the boxes that stay, r their rank by score. `groups` are sorted, null for one group. `kept` has
// n elements; each block uses those of its group. Blocks have kChunk threads.
template <class T>
__global__ void suppress(const Candidate<T>* candidates, const int64_t* groups, const int64_t* rank, int64_t n,
                         T threshold, int64_t n_max, int32_t* kept, uint8_t* keep) {
  __shared__ Candidate<T> tile[kChunk];
  __shared__ uint32_t suppresses[kChunk][kWords];  // bit j of row i: box i of the chunk suppresses box j
  __shared__ uint32_t alive[kWords];
  __shared__ int64_t shared_count;
  const int thread = threadIdx.x;
  for (int64_t start = blockIdx.x; start < n; start += gridDim.x) {
    if (start > 0 && (groups == nullptr || groups[start] == groups[start - 1])) continue;
    int64_t count = 0;
    for (int64_t first = start; first < n && (groups == nullptr || groups[first] == groups[start]); first += kChunk) {
      if (n_max > 0 && count >= n_max) break;
      const int64_t place = first + thread;
      bool free = place < n && (groups == nullptr || groups[place] == groups[start]);
      Candidate<T> mine = {0, 0, 0, 0, 0};
      if (free) mine = candidates[place];

      for (int64_t k = 0; k < count; k += kChunk) {
        __syncthreads();
        if (k + thread < count) tile[thread] = candidates[kept[start + k + thread]];
        __syncthreads();
        const int filled = count - k < kChunk ? static_cast<int>(count - k) : kChunk;
        for (int i = 0; i < filled && free; ++i) free = !overlap_reaches(tile[i], mine, threshold);
      }

      __syncthreads();
      tile[thread] = mine;
      const uint32_t free_of_warp = __ballot_sync(0xffffffffu, free);
      if (thread % 32 == 0) alive[thread / 32] = free_of_warp;
      __syncthreads();
      for (int word = 0; word < kWords; ++word) {
        uint32_t bits = 0;
        if (free && word >= thread / 32) {
          for (int bit = 0; bit < 32; ++bit) {
            const int other = 32 * word + bit;
            if (other > thread && overlap_reaches(mine, tile[other], threshold)) bits |= 1u << bit;
          }
        }
        suppresses[thread][word] = bits;
      }
      __syncthreads();
      if (thread == 0) {
        for (int i = 0; i < kChunk && (n_max <= 0 || count < n_max); ++i) {
          if (!(alive[i / 32] >> (i % 32) & 1u)) continue;
          for (int word = i / 32; word < kWords; ++word) alive[word] &= ~suppresses[i][word];
          kept[start + count++] = static_cast<int32_t>(first + i);
          keep[rank == nullptr ? first + i : rank[first + i]] = 1;
        }
        shared_count = count;
      }
      __syncthreads();
      count = shared_count;
    }
    __syncthreads();
  }
}

// Bit b of word w of row i: box i suppresses box j = 64 w + b > i of the same group. Words left of the diagonal are not
// written. A block has kMatrixRows rows (y) of one word (x).
template <class T>
__global__ void __launch_bounds__(kMatrixRows) overlap_matrix(const Candidate<T>* candidates, const int64_t* groups,
                                                              int64_t n, T threshold, unsigned long long* matrix) {
  __shared__ Candidate<T> tile[kBits];
  __shared__ int64_t group_of[kBits];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBits, row = static_cast<int64_t>(blockIdx.y) * kMatrixRows;
  if (first + kBits <= row) return;
  const int count = n - first < kBits ? static_cast<int>(n - first) : kBits;
  if (static_cast<int>(threadIdx.x) < count) {
    tile[threadIdx.x] = candidates[first + threadIdx.x];
    group_of[threadIdx.x] = groups == nullptr ? 0 : groups[first + threadIdx.x];
  }
  __syncthreads();
  const int64_t i = row + threadIdx.x;
  if (i >= n || first + kBits <= i) return;
  const Candidate<T> mine = candidates[i];
  const int64_t group = groups == nullptr ? 0 : groups[i];
  unsigned long long bits = 0;
  // they are sorted by group
  for (int b = i < first ? 0 : static_cast<int>(i - first) + 1; b < count && group_of[b] == group; ++b) {
    if (overlap_reaches(mine, tile[b], threshold)) bits |= 1ull << b;
  }
  matrix[i * gridDim.x + blockIdx.x] = bits;
}

// Sets keep[r] to 1 for the boxes that stay, see `suppress`. One block of kMostWords threads, each of which knows which
// boxes of one word are suppressed; thread by thread they decide on their boxes.
__global__ void __launch_bounds__(kMostWords)
    walk_matrix(const unsigned long long* matrix, const int64_t* groups, const int64_t* rank, int64_t n, int words,
                int64_t n_max, uint8_t* keep) {
  constexpr int kBatch = 8;  // rows whose loads are under way together
  __shared__ unsigned long long diagonal[kBits], shared_kept;
  __shared__ int64_t group_of[kBits], shared_count, shared_group;
  const int thread = threadIdx.x;
  const auto overlaps = [&](int64_t row, int word) { return row < n && word < words ? matrix[row * words + word] : 0; };
  const auto group_at = [&](int64_t place) { return groups != nullptr ? groups[place < n ? place : n - 1] : 0; };
  unsigned long long suppressed = 0, ahead = thread < kBits ? overlaps(thread, 0) : 0;
  int64_t group_ahead = thread < kBits ? group_at(thread) : 0;
  int64_t count = 0, group = group_at(0);  // boxes kept of the group of the last one kept
  // words begin with the box of the lowest group in them: no box of a lower one suppresses any there
  const int64_t last_group = group_at(n - 1), own_group = group_at(static_cast<int64_t>(thread) * kBits);
  for (int word = 0; word < words && (n_max <= 0 || count < n_max || group != last_group); ++word) {
    const int64_t first = static_cast<int64_t>(word) * kBits;
    if (thread < kBits) {
      diagonal[thread] = ahead;
      group_of[thread] = group_ahead;
      ahead = overlaps(first + kBits + thread, word + 1);
      group_ahead = group_at(first + kBits + thread);
    }
    __syncthreads();
    if (thread == word) {
      unsigned long long left = ~suppressed, kept = 0;
      if (n - first < kBits) left &= (1ull << (n - first)) - 1;
      while (left != 0) {
        const int b = __ffsll(static_cast<long long>(left)) - 1;
        left &= ~(1ull << b);
        if (group_of[b] != group) {
          group = group_of[b];
          count = 0;
        }
        if (n_max > 0 && count >= n_max) {
          if (group_of[kBits - 1] == group) break;
          continue;
        }
        ++count;
        kept |= 1ull << b;
        left &= ~diagonal[b];
      }
      shared_kept = kept;
      shared_count = count;
      shared_group = group;
    }
    __syncthreads();
    const unsigned long long kept = shared_kept;
    count = shared_count;
    group = shared_group;
    if (thread < kBits && (kept >> thread & 1) != 0) {
      keep[rank == nullptr ? first + thread : rank[first + thread]] = 1;
    }
    if (thread > word && thread < words && own_group <= group) {
      for (unsigned long long left = kept; left != 0;) {
        unsigned long long rows[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) {
          const int b = __ffsll(static_cast<long long>(left)) - 1;
          rows[k] = b < 0 ? 0 : matrix[(first + b) * words + thread];
          left &= left - 1;
        }
#pragma unroll
        for (int k = 0; k < kBatch; ++k) suppressed |= rows[k];
      }
    }
    __syncthreads();
  }
}

// The kept of `order`, in its order, then -1 up to `size`; one block of kEmitThreads, each thread has a stretch.
__global__ void emit_kept(const uint8_t* keep, const int64_t* order, int64_t n, int64_t size, int64_t* indices,
                          int64_t* total) {
  __shared__ int64_t sums[kEmitThreads];
  const int thread = threadIdx.x;
  const int64_t begin = n * thread / kEmitThreads, end = n * (thread + 1) / kEmitThreads;
  int64_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += keep[i];
  sums[thread] = sum;
  __syncthreads();
  for (int step = 1; step < kEmitThreads; step *= 2) {
    const int64_t earlier = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += earlier;
    __syncthreads();
  }
  int64_t place = sums[thread] - sum;
  for (int64_t i = begin; i < end; ++i) {
    if (keep[i]) indices[place++] = order[i];
  }
  const int64_t count = sums[kEmitThreads - 1];
  for (int64_t i = count + thread; i < size; i += kEmitThreads) indices[i] = -1;
  if (thread == 0) *total = count;
}

}  // namespace seamseg
