// Greedy non-maximum suppression: each candidate against the boxes kept so far, many of them at once, until one of them
// suppresses it. Groups do not meet, so the threads share them.
#include "boxes.h"

namespace seamseg {
namespace {

constexpr int64_t kBlock = 32;  // kept boxes compared with a candidate between two checks for suppression

template <class Key>
struct Entry {
  Key key;
  int32_t index;
};

// Keys that rise as scores fall, equal for equal scores; NaN comes first, as torch sorts it.
SEAMSEG_INLINE uint32_t falling_key(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  if (score == 0) bits = 0;
  return score != score ? 0 : (bits >> 31 ? bits : bits ^ 0x7fffffffu);
}
SEAMSEG_INLINE uint64_t falling_key(double score) {
  uint64_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  if (score == 0) bits = 0;
  return score != score ? 0 : (bits >> 63 ? bits : bits ^ 0x7fffffffffffffffu);
}

// By rising key; equal keys keep their order.
template <class Key>
void radix_sort(std::vector<Entry<Key>>& entries) {
  constexpr int kBits = 11, kPasses = (8 * sizeof(Key) + kBits - 1) / kBits;
  constexpr Key kMask = (Key{1} << kBits) - 1;
  if (entries.empty()) return;
  std::vector<uint32_t> counts(kPasses << kBits);
  for (const auto& entry : entries) {
    for (int pass = 0; pass < kPasses; ++pass) ++counts[(pass << kBits) + ((entry.key >> (pass * kBits)) & kMask)];
  }
  std::vector<Entry<Key>> sorted(entries.size());
  for (int pass = 0; pass < kPasses; ++pass) {
    const int shift = pass * kBits;
    uint32_t* next = counts.data() + (pass << kBits);
    if (next[(entries[0].key >> shift) & kMask] == entries.size()) continue;  // all alike
    uint32_t total = 0;
    for (Key digit = 0; digit <= kMask; ++digit) total += std::exchange(next[digit], total);
    for (const auto& entry : entries) sorted[next[(entry.key >> shift) & kMask]++] = entry;
    entries.swap(sorted);
  }
}

template <class S>
std::vector<int32_t> order_by_score(const S* scores, int64_t count) {
  using Key = decltype(falling_key(load(scores)));
  std::vector<Entry<Key>> entries(count);
  for (int64_t i = 0; i < count; ++i) entries[i] = {falling_key(load(scores + i)), static_cast<int32_t>(i)};
  radix_sort(entries);
  std::vector<int32_t> order(count);
  for (int64_t i = 0; i < count; ++i) order[i] = entries[i].index;
  return order;
}

// The order by group, then as before; `starts` is where each group begins, and the end.
std::vector<int32_t> order_by_group(const int64_t* groups, const std::vector<int32_t>& order,
                                    std::vector<int64_t>& starts) {
  const auto count = static_cast<int64_t>(order.size());
  std::vector<Entry<uint64_t>> entries(count);
  for (int64_t i = 0; i < count; ++i) entries[i] = {static_cast<uint64_t>(groups[order[i]]), order[i]};
  radix_sort(entries);
  std::vector<int32_t> grouped(count);
  starts.clear();
  for (int64_t i = 0; i < count; ++i) {
    grouped[i] = entries[i].index;
    if (i == 0 || entries[i].key != entries[i - 1].key) starts.push_back(i);
  }
  starts.push_back(count);
  return grouped;
}

// `bound` is the number next below the threshold. IoU >= threshold, a rounded quotient, then implies inter >= bound *
// union, a rounded product; so no division is needed to find out that nothing in a block suppresses.
template <class T>
SEAMSEG_INLINE bool suppressed(const Columns<T>& kept, int64_t count, const Box<T>& box, T area, T threshold, T bound) {
  for (int64_t first = 0; first < count; first += kBlock) {
    int maybe = 0;
    for (int64_t i = first; i < first + kBlock; ++i) {
      const T inter = positive_part(common_height(kept[i], box)) * common_width(kept[i], box);
      maybe |= !(inter < bound * ((kept.area[i] + area) - inter));
    }
    if (!maybe) continue;
    int surely = 0;
    for (int64_t i = first; i < std::min(first + kBlock, count); ++i) {
      surely |= iou_of(kept[i], kept.area[i], box, area) >= threshold;
    }
    if (surely) return true;
  }
  return false;
}

// Marks in `keep` the boxes of one group that stay; `order` has them by falling score.
template <class T, class S>
SEAMSEG_CLONES void suppress(const S* boxes, const int32_t* order, int64_t count, T threshold, int64_t n_max,
                             uint8_t* keep) {
  const int64_t most = n_max > 0 ? std::min(n_max, count) : count;
  // a threshold of 0 is reached without any intersection: then the division decides for every block
  const T bound = threshold > 0 ? std::nextafter(threshold, T(0)) : std::numeric_limits<T>::quiet_NaN();
  Columns<T> kept((most + kBlock - 1) / kBlock * kBlock);
  int64_t number = 0;
  for (int64_t i = 0; i < count && number < most; ++i) {
    const Box<T> box = load_box<T>(boxes + 4 * static_cast<int64_t>(order[i]));
    const T area = area_of(box);
    if (suppressed(kept, number, box, area, threshold, bound)) continue;
    if (number % kBlock == 0) {
      // what fills up the block is nowhere and suppresses nothing
      for (int64_t k = number; k < number + kBlock; ++k) kept.set(k, {1, 1, 0, 0}, std::numeric_limits<T>::infinity());
    }
    kept.set(number++, box, area);
    keep[order[i]] = 1;
  }
}

// Indices of the boxes that stay, by falling score.
std::vector<int64_t> kept_indices(const Tensor& boxes_, const Tensor& scores_, double threshold, int64_t n_max,
                                  const std::optional<Tensor>& groups_) {
  check_boxes(boxes_, "nms");
  const int64_t count = boxes_.size(0);
  STD_TORCH_CHECK(scores_.dim() == 1 && scores_.size(0) == count, "nms: scores must be N");
  STD_TORCH_CHECK(count <= std::numeric_limits<int32_t>::max(), "nms: more than 2^31 boxes");
  const Tensor boxes = torch::stable::contiguous(boxes_), scores = torch::stable::contiguous(scores_);

  std::vector<int32_t> order;
  dispatch_floating(scores, "nms", [&](auto zero) { order = order_by_score(data<decltype(zero)>(scores), count); });
  std::vector<int32_t> grouped;
  std::vector<int64_t> starts = {0, count};
  if (groups_.has_value()) {
    STD_TORCH_CHECK(groups_->dim() == 1 && groups_->size(0) == count && groups_->scalar_type() == ScalarType::Long,
                    "nms: groups must be N int64");
    const Tensor groups = torch::stable::contiguous(*groups_);
    grouped = order_by_group(data<int64_t>(groups), order, starts);
  }
  const int32_t* by_group = groups_.has_value() ? grouped.data() : order.data();
  const auto number = static_cast<int64_t>(starts.size()) - 1;
  std::vector<uint8_t> keep(count);
  dispatch_floating(boxes, "nms", [&](auto zero) {
    using S = decltype(zero);
    using T = wide_t<S>;
    // every thread marks the boxes of groups of its own
    const int64_t grain = std::max<int64_t>(1, 1024 * number / std::max<int64_t>(1, count));
    torch::stable::parallel_for(0, number, grain, [&](int64_t first, int64_t last) {
      for (int64_t group = first; group < last; ++group) {
        const int64_t start = starts[group];
        suppress<T>(data<S>(boxes), by_group + start, starts[group + 1] - start, static_cast<T>(threshold), n_max,
                    keep.data());
      }
    });
  });
  std::vector<int64_t> kept;
  for (const int32_t index : order) {
    if (keep[index]) kept.push_back(index);
  }
  return kept;
}

Tensor nms(const Tensor& boxes, const Tensor& scores, double threshold, int64_t n_max,
           const std::optional<Tensor>& groups) {
  const std::vector<int64_t> kept = kept_indices(boxes, scores, threshold, n_max, groups);
  Tensor indices = torch::stable::new_empty(boxes, {static_cast<int64_t>(kept.size())}, ScalarType::Long);
  std::copy(kept.begin(), kept.end(), mutable_data<int64_t>(indices));
  return indices;
}

std::tuple<Tensor, Tensor> nms_fixed(const Tensor& boxes, const Tensor& scores, double threshold, int64_t n_max,
                                     const std::optional<Tensor>& groups) {
  const std::vector<int64_t> kept = kept_indices(boxes, scores, threshold, n_max, groups);
  const int64_t size = n_max > 0 && !groups.has_value() ? std::min(n_max, boxes.size(0)) : boxes.size(0);
  Tensor indices = torch::stable::new_empty(boxes, {size}, ScalarType::Long);
  Tensor count = torch::stable::new_empty(boxes, {}, ScalarType::Long);
  auto* out = mutable_data<int64_t>(indices);
  std::fill(std::copy(kept.begin(), kept.end(), out), out + size, -1);
  *mutable_data<int64_t>(count) = static_cast<int64_t>(kept.size());
  return {indices, count};
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("nms", TORCH_BOX(&seamseg::nms));
  m.impl("nms_fixed", TORCH_BOX(&seamseg::nms_fixed));
}
