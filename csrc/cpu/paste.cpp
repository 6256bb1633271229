// Pasting instance masks into an id map: each crop is sampled once, counted against the map, and written if it is kept.
#include <algorithm>
#include <atomic>
#include <limits>

#include "../paste.h"
#include "common.h"

namespace seamseg {
namespace {

// Below this many pixels a crop is not worth waking other threads.
constexpr int64_t kGrain = 1 << 15;
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

template <class Id>
class Instance {
 public:
  Instance(const float* mask, const float* box, int64_t cells_y, int64_t cells_x, Id* ids, int64_t height,
           int64_t width, Scratch& scratch)
      : y_(paste_axis(box[0], box[2], height, cells_y)),
        x_(paste_axis(box[1], box[3], width, cells_x)),
        rows_(y_.stop - y_.start),
        columns_(x_.stop - x_.start),
        stride_(width),
        ids_(ids + y_.start * width + x_.start),
        scratch_(scratch) {
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
    if (rows_ * columns_ <= kGrain) return f(0, rows_);
    torch::stable::parallel_for(0, rows_, std::max<int64_t>(1, kGrain / columns_), f);
  }

  PasteAxis y_, x_;
  int64_t rows_, columns_, stride_;
  Id* ids_;
  Scratch& scratch_;
};

Tensor paste_masks_into(Tensor id_map, const Tensor& masks, const Tensor& boxes, double overlap_threshold,
                        int64_t first_id, bool keep_empty) {
  STD_TORCH_CHECK(id_map.dim() == 2 && id_map.scalar_type() != ScalarType::Bool,
                  "paste_masks_into: id_map must be an integer H x W");
  STD_TORCH_CHECK(masks.dim() == 3 && boxes.dim() == 2 && boxes.size(1) == 4 && masks.size(0) == boxes.size(0),
                  "paste_masks_into: masks must be K x h x w, boxes K x 4");
  STD_TORCH_CHECK(masks.scalar_type() == ScalarType::Float && boxes.scalar_type() == ScalarType::Float,
                  "paste_masks_into: masks and boxes must be float32");
  STD_TORCH_CHECK(masks.is_cpu() && boxes.is_cpu(), "paste_masks_into: arguments must be on one device");
  const int64_t count = masks.size(0), cells_y = masks.size(1), cells_x = masks.size(2);
  const int64_t height = id_map.size(0), width = id_map.size(1);
  STD_TORCH_CHECK(std::max({cells_y, cells_x, height, width}) < (int64_t{1} << 30), "paste_masks_into: too large");
  const Tensor target = torch::stable::contiguous(id_map);
  const Tensor cells = torch::stable::contiguous(masks), corners = torch::stable::contiguous(boxes);
  Tensor kept = torch::stable::new_empty(masks, {count}, ScalarType::Bool);
  bool* keeps = mutable_data<bool>(kept);

  dispatch_integer(id_map, "paste_masks_into", [&](auto zero) {
    using Id = decltype(zero);
    constexpr auto kLargest = static_cast<int64_t>(std::numeric_limits<Id>::max());
    STD_TORCH_CHECK(first_id >= 0 && first_id - 1 <= kLargest - count,
                    "paste_masks_into: id_map cannot hold the ids of all instances");
    Scratch scratch;
    int64_t next = first_id;
    for (int64_t i = 0; i < count; ++i) {
      Instance<Id> instance(data<float>(cells) + i * cells_y * cells_x, data<float>(corners) + 4 * i, cells_y, cells_x,
                            mutable_data<Id>(target), height, width, scratch);
      const Counts counts = instance.mark();
      keeps[i] = paste_keeps(counts.area, counts.free, overlap_threshold, keep_empty);
      if (keeps[i]) instance.write(static_cast<Id>(next++));
    }
  });
  if (!id_map.is_contiguous()) torch::stable::copy_(id_map, target);
  return kept;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("paste_masks_into", TORCH_BOX(&seamseg::paste_masks_into)); }
