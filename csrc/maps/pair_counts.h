// Counts of pairs of labels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace seamseg {

// Pairs of labels below this are counted in a table, all others by hashing.
constexpr int64_t kSmall = 256;

struct Entry {
  int64_t a, b, count;
};

// Open addressing; a count of 0 marks a free place.
class PairCounts {
 public:
  void add(int64_t a, int64_t b, int64_t count) {
    if (static_cast<uint64_t>(a) < kSmall && static_cast<uint64_t>(b) < kSmall) {
      small_[a * kSmall + b] += count;
      return;
    }
    Entry& entry = find(a, b);
    if (entry.count == 0) ++used_;
    entry = {a, b, entry.count + count};
    if (2 * used_ > large_.size()) grow();
  }

  // Single elements, one pair each.
  void add_each(const int64_t* a, const int64_t* b, int64_t count) {
    int64_t all = 0;
    for (int64_t i = 0; i < count; ++i) all |= a[i] | b[i];
    if (static_cast<uint64_t>(all) < kSmall) {
      for (int64_t i = 0; i < count; ++i) ++small_[a[i] * kSmall + b[i]];
    } else {
      for (int64_t i = 0; i < count; ++i) add(a[i], b[i], 1);
    }
  }

  void append_to(std::vector<Entry>& out) const {
    for (int64_t i = 0; i < kSmall * kSmall; ++i) {
      if (small_[i] != 0) out.push_back({i / kSmall, i % kSmall, small_[i]});
    }
    for (const Entry& entry : large_) {
      if (entry.count != 0) out.push_back(entry);
    }
  }

 private:
  Entry& find(int64_t a, int64_t b) {
    uint64_t hash = static_cast<uint64_t>(a) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(b);
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93u;
    const uint64_t mask = large_.size() - 1;
    uint64_t at = (hash ^ (hash >> 32)) & mask;
    while (large_[at].count != 0 && (large_[at].a != a || large_[at].b != b)) at = (at + 1) & mask;
    return large_[at];
  }

  void grow() {
    std::vector<Entry> before(2 * large_.size());
    before.swap(large_);
    for (const Entry& entry : before) {
      if (entry.count != 0) find(entry.a, entry.b) = entry;
    }
  }

  std::vector<int64_t> small_ = std::vector<int64_t>(kSmall * kSmall);
  std::vector<Entry> large_ = std::vector<Entry>(1024);
  size_t used_ = 0;
};

// The pairs that occur, rising; counts of the same pair are summed.
inline std::vector<Entry> sorted_pairs(std::vector<Entry> entries) {
  const auto less = [](const Entry& x, const Entry& y) { return x.a != y.a ? x.a < y.a : x.b < y.b; };
  if (!std::is_sorted(entries.begin(), entries.end(), less)) std::sort(entries.begin(), entries.end(), less);
  size_t kept = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (kept > 0 && entries[kept - 1].a == entries[i].a && entries[kept - 1].b == entries[i].b) {
      entries[kept - 1].count += entries[i].count;
    } else {
      entries[kept++] = entries[i];
    }
  }
  entries.resize(kept);
  return entries;
}

}  // namespace seamseg
