// Maps of segment ids as runs, and never as pixels: from the filtered rows of an RGB PNG to the runs of its colours,
// and from the runs of two maps to how often each pair of ids occurs. A run ends with its row.
#include <memory>

#include "answer.h"
#include "pair_counts.h"
#include "png_rows.h"

namespace seamseg {
namespace {

// changed[i] is set where byte i is not that of the pixel to the left
SEAMSEG_CLONES void mark_pixels(const uint8_t* SEAMSEG_RESTRICT p, int64_t count, uint8_t* SEAMSEG_RESTRICT changed) {
  for (int64_t i = 0; i < count; ++i) changed[i] = static_cast<uint8_t>(p[i] != p[i - kPixel]);
}

class Runs {
 public:
  // before the first row, both rows are of zeros
  Runs(int64_t height, int64_t width)
      : left_(height), width_(width), above_(kPixel * (width + 1)), row_(kPixel * (width + 1)), changed_(kPixel * width) {}

  void add_row(const uint8_t* filtered) {
    require(left_ > 0, "more rows than the map has");
    if (undo_filter(filtered[0], filtered + 1, above_.data() + kPixel, row_.data() + kPixel, kPixel * width_) &&
        !starts.empty()) {
      again();
    } else {
      read_row();
      above_.swap(row_);
    }
    // after the last row the sum may be 2^31
    if (--left_ > 0) first_ += static_cast<int32_t>(width_);
  }

  int64_t row_bytes() const { return kPixel * width_ + 1; }

  std::vector<int32_t> starts, ids;

 private:
  void again() {
    const size_t count = starts.size() - begin_;
    const size_t size = starts.size();
    starts.resize(size + count);
    ids.resize(size + count);
    for (size_t i = size; i < size + count; ++i) {
      starts[i] = starts[i - count] + static_cast<int32_t>(width_);
      ids[i] = ids[i - count];
    }
    begin_ = size;
  }

  void read_row() {
    begin_ = starts.size();
    const uint8_t* p = row_.data() + kPixel;
    const int64_t count = kPixel * width_;
    mark_pixels(p, count, changed_.data());
    add(p, 0);
    int64_t last = 0;
    for (int64_t i = next_nonzero(changed_.data(), 0, count); i < count;) {
      if (i / kPixel != last) {
        last = i / kPixel;
        add(p, last);
      }
      i = next_nonzero(changed_.data(), i + 1, count);
    }
  }

  void add(const uint8_t* p, int64_t x) {
    starts.push_back(first_ + static_cast<int32_t>(x));
    ids.push_back(p[kPixel * x] | p[kPixel * x + 1] << 8 | p[kPixel * x + 2] << 16);
  }

  int64_t left_, width_;
  int32_t first_ = 0;
  size_t begin_ = 0;
  std::vector<uint8_t> above_, row_, changed_;
};

struct Map {
  const int32_t* starts;
  const int32_t* ids;
  int64_t size, total;

  int64_t end(int64_t run) const { return run + 1 < size ? starts[run + 1] : total; }
};

void count_pairs(const Map& a, const Map& b, PairCounts& counts) {
  require(a.size > 0 && b.size > 0, "a map without runs");
  int64_t i = 0, j = 0;
  for (int64_t at = 0; at < a.total;) {
    const int64_t a_end = a.end(i), b_end = b.end(j), stop = std::min(a_end, b_end);
    require(stop > at && stop <= a.total, "runs must rise");
    counts.add(a.ids[i], b.ids[j], stop - at);
    at = stop;
    i += a_end == stop ? 1 : 0;
    j += b_end == stop ? 1 : 0;
  }
}

}  // namespace
}  // namespace seamseg

using namespace seamseg;

// An empty map, to which rows are added; seamseg_take_runs frees it.
SEAMSEG_EXPORT void* seamseg_begin_runs(int64_t height, int64_t width, char* error) {
  return answer(error, [&] {
    constexpr int64_t kMost = (int64_t{1} << 31) - 1;
    require(height > 0 && width > 0 && height <= kMost / width, "1 to 2^31-1 pixels");
    return std::make_unique<Runs>(height, width).release();
  });
}

// Adds `rows` filtered rows, each of 3 * width + 1 bytes; `count` becomes the number of runs so far. Returns the map, or
// null on an error, after which it can only be freed.
SEAMSEG_EXPORT void* seamseg_add_rows(void* map, const uint8_t* filtered, int64_t rows, int64_t* count, char* error) {
  return answer(error, [&] {
    auto* runs = static_cast<Runs*>(map);
    for (int64_t row = 0; row < rows; ++row) runs->add_row(filtered + row * runs->row_bytes());
    *count = static_cast<int64_t>(runs->starts.size());
    return runs;
  });
}

// Copies first pixels and ids of the runs, and frees them; to null it copies nothing.
SEAMSEG_EXPORT void seamseg_take_runs(void* found, int32_t* starts, int32_t* ids) {
  const std::unique_ptr<Runs> runs(static_cast<Runs*>(found));
  if (starts == nullptr || ids == nullptr) return;
  std::copy(runs->starts.begin(), runs->starts.end(), starts);
  std::copy(runs->ids.begin(), runs->ids.end(), ids);
}

// As seamseg_joint_histogram; each map is so many runs of `total` pixels.
SEAMSEG_EXPORT void* seamseg_joint_histogram_of_runs(const int32_t* a_starts, const int32_t* a_ids, int64_t a_size,
                                                     const int32_t* b_starts, const int32_t* b_ids, int64_t b_size,
                                                     int64_t total, int64_t* count, char* error) {
  return answer(error, [&] {
    auto found = std::make_unique<std::vector<Entry>>();
    if (total > 0) {
      PairCounts counts;
      count_pairs({a_starts, a_ids, a_size, total}, {b_starts, b_ids, b_size, total}, counts);
      counts.append_to(*found);
    }
    *found = sorted_pairs(std::move(*found));
    *count = static_cast<int64_t>(found->size());
    return found.release();
  });
}
