// How often each pair of labels of two maps occurs. One walk along the runs: a block of both maps is compared with itself
// shifted by one, and only changes have a label to count.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>

#include "../compilers.h"
#include "answer.h"
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
Labels labels_of(const void* elements) {
  return {elements,
          [](const void* p, int64_t start, int64_t count, uint8_t* changed) {
            mark_changes(static_cast<const T*>(p) + start, count, changed);
          },
          [](const void* p, const int64_t* places, int64_t count, int64_t* out) {
            for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(static_cast<const T*>(p)[places[i]]);
          },
          [](const void* p, int64_t start, int64_t count, int64_t* out) {
            for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(static_cast<const T*>(p)[start + i]);
          }};
}

// kind: bytes of an element, negative if it has a sign
Labels labels_of(const void* elements, int32_t kind) {
  switch (kind) {
    case 1:
      return labels_of<uint8_t>(elements);
    case -1:
      return labels_of<int8_t>(elements);
    case 2:
      return labels_of<uint16_t>(elements);
    case -2:
      return labels_of<int16_t>(elements);
    case 4:
      return labels_of<uint32_t>(elements);
    case -4:
      return labels_of<int32_t>(elements);
    case 8:
      return labels_of<uint64_t>(elements);
    case -8:
      return labels_of<int64_t>(elements);
    default:
      throw std::runtime_error("elements of an unknown kind");
  }
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

}  // namespace
}  // namespace seamseg

using namespace seamseg;

// Two million elements take a millisecond or two, too little to divide among threads: callers compare images in parallel.
SEAMSEG_EXPORT void* seamseg_joint_histogram(const void* a, int32_t a_kind, const void* b, int32_t b_kind,
                                             int64_t total, int64_t* count, char* error) {
  return answer(error, [&] {
    auto found = std::make_unique<std::vector<Entry>>();
    const Labels first = labels_of(a, a_kind), second = labels_of(b, b_kind);
    if (total > 0) {
      PairCounts counts;
      count_range(first, second, 0, total, counts);
      counts.append_to(*found);
    }
    *found = sorted_pairs(std::move(*found));
    *count = static_cast<int64_t>(found->size());
    return found.release();
  });
}

// Copies the pairs, `count x 2`, and their counts, and frees them; to null it copies nothing.
SEAMSEG_EXPORT void seamseg_take_pairs(void* found, int64_t* pairs, int64_t* counts) {
  const std::unique_ptr<std::vector<Entry>> entries(static_cast<std::vector<Entry>*>(found));
  if (pairs == nullptr || counts == nullptr) return;
  for (const Entry& entry : *entries) {
    *pairs++ = entry.a;
    *pairs++ = entry.b;
    *counts++ = entry.count;
  }
}
