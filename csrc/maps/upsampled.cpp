// The best of many masks or classes at each pixel of an image, and the boxes of masks, from their logits on a coarser grid.
// No mask exists at the size of the image: a strip of columns at a time, the rows of cells around a row of pixels are
// expanded once, and blended for each row of pixels between them. Arrays are contiguous; the caller has checked sizes and
// ranges.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "../label_rows.h"
#include "answer.h"

#include "../no_contraction.h"
#include "../fast_exp.h"

namespace seamseg {
namespace {

// Columns of a strip: a row of each of a hundred masks stays in the cache.
constexpr int64_t kStrip = 512;

// Each pixel of an axis is a weighted sum of `taps` cells, from `first` on; weights: taps x pixels.
struct Axis {
  const int32_t* first;
  const float* weights;
  int64_t taps, pixels;
};

SEAMSEG_CLONES void expand(const float* SEAMSEG_RESTRICT cells, const int32_t* SEAMSEG_RESTRICT first,
                           const float* SEAMSEG_RESTRICT weights, int64_t n, float* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) out[i] = weights[i] * cells[first[i]];
}

SEAMSEG_CLONES void expand_more(const float* SEAMSEG_RESTRICT cells, const int32_t* SEAMSEG_RESTRICT first,
                                const float* SEAMSEG_RESTRICT weights, int64_t n, float* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) out[i] += weights[i] * cells[first[i]];
}

SEAMSEG_CLONES void scale(const float* SEAMSEG_RESTRICT line, float weight, int64_t n, float* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) out[i] = weight * line[i];
}

SEAMSEG_CLONES void add_scaled(const float* SEAMSEG_RESTRICT line, float weight, int64_t n,
                               float* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) out[i] += weight * line[i];
}

// Logits of `count` masks at the pixels of an image.
class Upsampled {
 public:
  Upsampled(const float* logits, int64_t count, int64_t height, int64_t width, const Axis& rows, const Axis& columns)
      : logits_(logits),
        count_(count),
        height_(height),
        width_(width),
        rows_(rows),
        columns_(columns),
        lines_(count * rows.taps * kStrip),
        held_(rows.taps) {}

  // Calls f(y, x, n) for each row of each strip, of n columns from x on.
  template <class F>
  void each_row(F&& f) {
    for (int64_t x = 0; x < columns_.pixels; x += kStrip) {
      const int64_t n = std::min(kStrip, columns_.pixels - x);
      std::fill(held_.begin(), held_.end(), -1);
      for (int64_t y = 0; y < rows_.pixels; ++y) {
        for (int64_t t = 0; t < rows_.taps; ++t) hold(rows_.first[y] + t, x, n);
        f(y, x, n);
      }
    }
  }

  // The logits of mask k in the row of f.
  const float* row(int64_t k, int64_t y, int64_t n) {
    for (int64_t t = 0; t < rows_.taps; ++t) {
      const float* line = line_of(k, rows_.first[y] + t);
      const float weight = rows_.weights[t * rows_.pixels + y];
      t == 0 ? scale(line, weight, n, row_) : add_scaled(line, weight, n, row_);
    }
    return row_;
  }

 private:
  float* line_of(int64_t k, int64_t cell) { return lines_.data() + (k * rows_.taps + cell % rows_.taps) * kStrip; }

  // Expands a row of cells of all masks, unless that was the last one in its place.
  void hold(int64_t cell, int64_t x, int64_t n) {
    if (held_[cell % rows_.taps] == cell) return;
    held_[cell % rows_.taps] = cell;
    for (int64_t k = 0; k < count_; ++k) {
      const float* cells = logits_ + (k * height_ + cell) * width_;
      float* line = line_of(k, cell);
      for (int64_t t = 0; t < columns_.taps; ++t) {
        const float* weights = columns_.weights + t * columns_.pixels + x;
        (t == 0 ? expand : expand_more)(cells + t, columns_.first + x, weights, n, line);
      }
    }
  }

  const float* logits_;
  int64_t count_, height_, width_;
  Axis rows_, columns_;
  std::vector<float> lines_;  // of each mask, the rows of cells in use
  std::vector<int64_t> held_;
  float row_[kStrip];
};

// Where score x probability is above the best so far, `owner` becomes `label`, negative where the probability is below
// .5. Returns the pixels where it is not. NaN is never best.
SEAMSEG_CLONES int64_t take_where_better(const float* SEAMSEG_RESTRICT logits, int64_t n, float score, int32_t label,
                                         float* SEAMSEG_RESTRICT best, int32_t* SEAMSEG_RESTRICT owner) {
  int32_t inside = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float x = logits[i], negated = -x > 87.0f ? 87.0f : -x;
    const float value = score / (1.0f + fast_exp(negated));
    const bool take = value > best[i];
    const int32_t mine = x >= 0.0f ? label : -label;
    best[i] = take ? value : best[i];
    owner[i] = take ? mine : owner[i];
    inside += x >= 0.0f;
  }
  return inside;
}

SEAMSEG_CLONES void take_where_above(const float* SEAMSEG_RESTRICT logits, int64_t n, int32_t label,
                                     float* SEAMSEG_RESTRICT best, int32_t* SEAMSEG_RESTRICT index) {
  for (int64_t i = 0; i < n; ++i) {
    const bool take = logits[i] > best[i];
    best[i] = take ? logits[i] : best[i];
    index[i] = take ? label : index[i];
  }
}

SEAMSEG_CLONES bool any_inside(const float* SEAMSEG_RESTRICT logits, int64_t n) {
  int32_t any = 0;
  for (int64_t i = 0; i < n; ++i) any |= logits[i] >= 0.0f;
  return any != 0;
}

}  // namespace
}  // namespace seamseg

// For each pixel the mask with the best score x probability: k + 1 where its probability is at least .5, 0 elsewhere.
// Counts are `3 x count`: pixels where a mask is the best, where its probability is at least .5, and where both hold.
// Returns null on an error.
SEAMSEG_EXPORT const void* seamseg_best_masks(const float* logits, int64_t count, int64_t height, int64_t width,
                                              const seamseg::Axis* rows, const seamseg::Axis* columns,
                                              const float* scores, int16_t* out, int64_t* counts, char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    seamseg::Upsampled masks(logits, count, height, width, *rows, *columns);
    float best[seamseg::kStrip];
    int32_t owner[seamseg::kStrip];
    std::vector<int64_t> pixels(2 * count + 1);  // of each label, from -count on
    int64_t* inside = counts + count;
    masks.each_row([&](int64_t y, int64_t x, int64_t n) {
      std::fill_n(best, n, -1.0f);
      std::fill_n(owner, n, 0);
      for (int64_t k = 0; k < count; ++k) {
        const auto label = static_cast<int32_t>(k + 1);
        inside[k] += seamseg::take_where_better(masks.row(k, y, n), n, scores[k], label, best, owner);
      }
      int16_t* line = out + y * columns->pixels + x;
      for (int64_t i = 0; i < n; ++i) {
        ++pixels[count + owner[i]];
        line[i] = static_cast<int16_t>(std::max(owner[i], 0));
      }
    });
    for (int64_t k = 0; k < count; ++k) {
      counts[2 * count + k] = pixels[count + k + 1];
      counts[k] = pixels[count + k + 1] + pixels[count - k - 1];
    }
    return out;
  });
}

// For each pixel the class with the highest logit, of at most 256; the first of equals, and 0 if all are NaN. Returns
// null on an error.
SEAMSEG_EXPORT const void* seamseg_best_classes(const float* logits, int64_t count, int64_t height, int64_t width,
                                                const seamseg::Axis* rows, const seamseg::Axis* columns, uint8_t* out,
                                                char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    seamseg::Upsampled classes(logits, count, height, width, *rows, *columns);
    float best[seamseg::kStrip];
    int32_t index[seamseg::kStrip];
    classes.each_row([&](int64_t y, int64_t x, int64_t n) {
      std::fill_n(best, n, -std::numeric_limits<float>::infinity());
      std::fill_n(index, n, 0);
      for (int64_t k = 0; k < count; ++k) {
        seamseg::take_where_above(classes.row(k, y, n), n, static_cast<int32_t>(k), best, index);
      }
      uint8_t* line = out + y * columns->pixels + x;
      for (int64_t i = 0; i < n; ++i) line[i] = static_cast<uint8_t>(index[i]);
    });
    return out;
  });
}

// The box (y0, x0, y1, x1) around the pixels of each mask whose probability is at least .5, -1 if there are none.
// Returns null on an error.
SEAMSEG_EXPORT const void* seamseg_mask_boxes(const float* logits, int64_t count, int64_t height, int64_t width,
                                              const seamseg::Axis* rows, const seamseg::Axis* columns, float* boxes,
                                              char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    seamseg::Upsampled masks(logits, count, height, width, *rows, *columns);
    std::vector<seamseg::Extent> extents(count);
    masks.each_row([&](int64_t y, int64_t x, int64_t n) {
      for (int64_t k = 0; k < count; ++k) {
        const float* row = masks.row(k, y, n);
        if (!seamseg::any_inside(row, n)) continue;
        int64_t first = 0, stop = n;
        while (!(row[first] >= 0.0f)) ++first;
        while (!(row[stop - 1] >= 0.0f)) --stop;
        const auto top = static_cast<int32_t>(y);
        extents[k].add(top, static_cast<int32_t>(x + first), top + 1, static_cast<int32_t>(x + stop));
      }
    });
    for (int64_t k = 0; k < count; ++k) seamseg::write_box(extents[k], boxes + 4 * k);
    return boxes;
  });
}
