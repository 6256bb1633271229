// Pasting instance masks into an id map on the CPU: each crop is sampled once, counted against the map, and written if it
// is kept. Shared by the operator of LibTorch and by the C library.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "paste.h"

namespace seamseg {
namespace {

// Below this many pixels a crop is not worth waking other threads.
constexpr int64_t kPasteGrain = 1 << 15;
// A row whose two rows of cells stay below this cannot reach .5, whatever the rounding.
constexpr float kHopeless = 0.4999f;

struct Counts {
  int64_t area = 0, free = 0;
};

// One row of cells at every column of the crop.
SEAMSEG_CLONES void blend_columns(const float* SEAMSEG_RESTRICT cells, const PasteTap* SEAMSEG_RESTRICT taps, int64_t n,
                                  float* SEAMSEG_RESTRICT out) {
  for (int64_t x = 0; x < n; ++x) {
    const PasteTap& tap = taps[x];
    out[x] = static_cast<float>(
        paste_blend(cells[tap.first], cells[tap.second], tap.first_weight, tap.second_weight));
  }
}

SEAMSEG_CLONES float largest(const float* SEAMSEG_RESTRICT p, int64_t n) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) most = p[i] > most ? p[i] : most;
  return most;
}

// Marks the pixels of a row that the instance would get, and counts its pixels.
template <class Id>
SEAMSEG_CLONES Counts mark_row(const float* SEAMSEG_RESTRICT upper, const float* SEAMSEG_RESTRICT lower,
                               const PasteTap& tap, const Id* SEAMSEG_RESTRICT ids, int64_t n,
                               uint8_t* SEAMSEG_RESTRICT mine) {
  const float first = tap.first_weight, second = tap.second_weight;
  for (int64_t x = 0; x < n; ++x) mine[x] = paste_blend(upper[x], lower[x], first, second) > 0.5;
  int32_t area = 0, free = 0;
  for (int64_t x = 0; x < n; ++x) {
    const auto hit = mine[x], open = static_cast<uint8_t>(hit & (ids[x] == 0));
    area += hit;
    free += open;
    mine[x] = open;
  }
  return {area, free};
}

template <class Id>
SEAMSEG_CLONES void write_row(const uint8_t* SEAMSEG_RESTRICT mine, Id id, int64_t n, Id* SEAMSEG_RESTRICT ids) {
  for (int64_t x = 0; x < n; ++x) ids[x] = mine[x] ? id : ids[x];
}

// Buffers that all instances of a thread reuse.
struct Scratch {
  std::vector<PasteTap> taps;
  std::vector<float> across, most;
  std::vector<uint8_t> mine;
};

// An instance on an id map; `parallel(rows, grain, f)` calls f(begin, end) for parts of 0 .. rows.
template <class Id, class Parallel>
class Instance {
 public:
  Instance(const float* mask, const float* box, int64_t cells_y, int64_t cells_x, Id* ids, int64_t height,
           int64_t width, Scratch& scratch, Parallel parallel)
      : y_(paste_axis(box[0], box[2], height, cells_y)),
        x_(paste_axis(box[1], box[3], width, cells_x)),
        rows_(y_.stop - y_.start),
        columns_(x_.stop - x_.start),
        stride_(width),
        ids_(ids + y_.start * width + x_.start),
        scratch_(scratch),
        parallel_(parallel) {
    if (empty()) return;
    scratch.taps.resize(columns_);
    for (int64_t x = 0; x < columns_; ++x) scratch.taps[x] = paste_tap(x_, x_.start + x);
    scratch.across.resize(cells_y * columns_);
    scratch.most.resize(cells_y);
    for (int64_t cell = 0; cell < cells_y; ++cell) {
      float* line = scratch.across.data() + cell * columns_;
      blend_columns(mask + cell * cells_x, scratch.taps.data(), columns_, line);
      scratch.most[cell] = largest(line, columns_);
    }
    if (static_cast<int64_t>(scratch.mine.size()) < rows_ * columns_) scratch.mine.resize(rows_ * columns_);
  }

  // Threads share the rows: each marks rows of its own, and whole numbers may be added in any order.
  Counts mark() {
    if (empty()) return {};
    std::atomic<int64_t> area{0}, free{0};
    each_row([&](int64_t begin, int64_t end) {
      Counts sum;
      for (int64_t row = begin; row < end; ++row) {
        const PasteTap tap = paste_tap(y_, y_.start + row);
        uint8_t* mine = scratch_.mine.data() + row * columns_;
        if (std::max(scratch_.most[tap.first], scratch_.most[tap.second]) < kHopeless) {
          std::memset(mine, 0, columns_);
          continue;
        }
        const float* across = scratch_.across.data();
        const Counts counts = mark_row(across + tap.first * columns_, across + tap.second * columns_, tap,
                                       ids_ + row * stride_, columns_, mine);
        sum.area += counts.area;
        sum.free += counts.free;
      }
      area += sum.area;
      free += sum.free;
    });
    return {area, free};
  }

  // Threads write rows of their own.
  void write(Id id) {
    if (empty()) return;
    each_row([&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        write_row(scratch_.mine.data() + row * columns_, id, columns_, ids_ + row * stride_);
      }
    });
  }

 private:
  bool empty() const { return rows_ <= 0 || columns_ <= 0; }

  template <class F>
  void each_row(F&& f) {
    if (rows_ * columns_ <= kPasteGrain) return f(0, rows_);
    parallel_(rows_, std::max<int64_t>(1, kPasteGrain / columns_), f);
  }

  PasteAxis y_, x_;
  int64_t rows_, columns_, stride_;
  Id* ids_;
  Scratch& scratch_;
  Parallel parallel_;
};

// Pastes instances one after the other and notes in `keeps` which got an id.
template <class Id, class Parallel>
void paste_instances(const float* masks, const float* boxes, int64_t count, int64_t cells_y, int64_t cells_x, Id* ids,
                     int64_t height, int64_t width, double overlap_threshold, int64_t first_id, bool keep_empty,
                     bool* keeps, Parallel parallel) {
  Scratch scratch;
  int64_t next = first_id;
  for (int64_t i = 0; i < count; ++i) {
    Instance<Id, Parallel> instance(masks + i * cells_y * cells_x, boxes + 4 * i, cells_y, cells_x, ids, height, width,
                                    scratch, parallel);
    const Counts counts = instance.mark();
    keeps[i] = paste_keeps(counts.area, counts.free, overlap_threshold, keep_empty);
    if (keeps[i]) instance.write(static_cast<Id>(next++));
  }
}

}  // namespace
}  // namespace seamseg
