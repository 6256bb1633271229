// How often each pair of labels of two maps occurs. One walk along the runs: a block of both maps is compared with itself
// shifted by one, and only where something changes is there a label to look at.
#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "common.h"
#include "pair_counts.h"

namespace seamseg {
namespace {

constexpr int64_t kBlock = 4096;

// changed[i] is set where p[i] is not p[i - 1]
template <class T>
SEAMSEG_CLONES void mark_changes(const T* SEAMSEG_RESTRICT p, int64_t count, uint8_t* SEAMSEG_RESTRICT changed) {
  for (int64_t i = 0; i < count; ++i) changed[i] |= static_cast<uint8_t>(p[i] != p[i - 1]);
}

// A map whose element type is known to functions that work on a block at a time.
struct Labels {
  const void* elements;
  void (*mark)(const void*, int64_t, int64_t, uint8_t*);
  void (*read)(const void*, const int64_t*, int64_t, int64_t*);
  void (*read_all)(const void*, int64_t, int64_t, int64_t*);
};

template <class T>
Labels labels_of(const Tensor& x) {
  return {data<T>(x),
          [](const void* elements, int64_t start, int64_t count, uint8_t* changed) {
            mark_changes(static_cast<const T*>(elements) + start, count, changed);
          },
          [](const void* elements, const int64_t* places, int64_t count, int64_t* out) {
            const T* p = static_cast<const T*>(elements);
            for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(p[places[i]]);
          },
          [](const void* elements, int64_t start, int64_t count, int64_t* out) {
            const T* p = static_cast<const T*>(elements) + start;
            for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(p[i]);
          }};
}

Labels labels_of(const Tensor& x) {
  Labels labels{};
  dispatch_integer(x, "joint_histogram", [&](auto zero) { labels = labels_of<decltype(zero)>(x); });
  return labels;
}

// Places of the set bytes, counted from `start`.
int64_t places_of(const std::array<uint8_t, kBlock>& changed, int64_t start, int64_t* places) {
  int64_t found = 0;
  for (int64_t i = 0; i < kBlock; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, changed.data() + i, sizeof eight);
    if constexpr (std::endian::native == std::endian::little) {
      for (; eight != 0; eight &= eight - 1) places[found++] = start + i + std::countr_zero(eight) / 8;
    } else {
      for (; eight != 0; eight ^= std::bit_floor(eight)) places[found++] = start + i + std::countl_zero(eight) / 8;
    }
  }
  return found;
}

void count_range(const Labels& a, const Labels& b, int64_t begin, int64_t end, PairCounts& counts) {
  std::array<uint8_t, kBlock> changed;
  std::array<int64_t, kBlock> places, first, second;
  int64_t run = begin, run_a = 0, run_b = 0;
  a.read(a.elements, &begin, 1, &run_a);
  b.read(b.elements, &begin, 1, &run_b);
  for (int64_t start = begin + 1; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    changed.fill(0);
    a.mark(a.elements, start, count, changed.data());
    b.mark(b.elements, start, count, changed.data());
    if (2 * std::accumulate(changed.begin(), changed.end(), int64_t{0}) > count) {
      // noise: there is no run to be gained from
      a.read_all(a.elements, start, count, first.data());
      b.read_all(b.elements, start, count, second.data());
      counts.add(run_a, run_b, start - run);
      counts.add_each(first.data(), second.data(), count - 1);
      run = start + count - 1;
      run_a = first[count - 1];
      run_b = second[count - 1];
      continue;
    }
    const int64_t found = places_of(changed, start, places.data());
    a.read(a.elements, places.data(), found, first.data());
    b.read(b.elements, places.data(), found, second.data());
    for (int64_t i = 0; i < found; ++i) {
      counts.add(run_a, run_b, places[i] - run);
      run = places[i];
      run_a = first[i];
      run_b = second[i];
    }
  }
  counts.add(run_a, run_b, end - run);
}

std::tuple<Tensor, Tensor> joint_histogram(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(same_shape(a, b), "joint_histogram: a and b must have one shape");
  const Tensor left = torch::stable::contiguous(a), right = torch::stable::contiguous(b);
  const Labels first = labels_of(left), second = labels_of(right);
  const int64_t total = left.numel();

  std::vector<Entry> entries;
  if (total > 0) {
    // Two million elements take a millisecond or two, which is no work to share: callers compare pictures in parallel.
    // Every thread counts its own part of the elements in its own tables; whole numbers can be added in any order.
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(torch::stable::get_num_threads(), total >> 21));
    std::vector<PairCounts> partial(parts);
    torch::stable::parallel_for(0, parts, 1, [&](int64_t from, int64_t to) {
      for (int64_t part = from; part < to; ++part) {
        count_range(first, second, total * part / parts, total * (part + 1) / parts, partial[part]);
      }
    });
    for (const PairCounts& counts : partial) counts.append_to(entries);
  }
  return sorted_pairs(std::move(entries), left);
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("joint_histogram", TORCH_BOX(&seamseg::joint_histogram)); }
