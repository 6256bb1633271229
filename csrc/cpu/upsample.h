// Bilinear upsampling without the upsampled tensor, by cells: a cell lies between four neighbouring source pixels, and
// the output pixels in it are numbered by row and by phase (first, second ... column of the cell). Loops run along
// cells, so that neither loads nor arithmetic depend on the ratio of the sizes.
#pragma once

#include <algorithm>
#include <vector>

#include "../upsample_host.h"
#include "common.h"

namespace seamseg::upsampling {

// Cells worked on at once.
constexpr int64_t kLanes = 32;
// Phases of a cell; where the ratio is larger there are more cells.
constexpr int64_t kMostPhases = 64;

// Output pixels `begin .. end - 1` of an axis that lie between the source pixels `first` and `second`.
struct Span {
  int64_t first, second, begin, end;
};

struct Axis {
  std::vector<float> weight;  // of the second source pixel, for each output pixel
  std::vector<Span> spans;
  int64_t longest = 0;

  // `most` output pixels a span: more of them become several
  Axis(int64_t size, int64_t padded, int64_t valid, int64_t most) {
    const float scale = source_scale(size, padded);
    for (int64_t i = 0; i < valid; ++i) {
      const Tap tap = source_tap(i, size, scale);
      weight.push_back(tap.weight);
      const bool same = !spans.empty() && spans.back().first == tap.first;
      if (!same || spans.back().end - spans.back().begin == most) spans.push_back({tap.first, tap.second, i, i});
      spans.back().end = i + 1;
      longest = std::max(longest, i + 1 - spans.back().begin);
    }
  }
};

// The source columns of kLanes cells; a chunk with fewer repeats its last cell.
struct Lanes {
  int64_t count = 0;
  const Span* span[kLanes];
  int64_t left[kLanes], right[kLanes];
  bool consecutive = false;

  void set(const Span* const* cells, int64_t n) {
    count = n;
    for (int64_t j = 0; j < kLanes; ++j) {
      span[j] = cells[std::min(j, n - 1)];
      left[j] = span[j]->first;
      right[j] = span[j]->second;
    }
    consecutive = true;
    for (int64_t j = 1; j < kLanes; ++j) {
      consecutive = consecutive && left[j] == left[j - 1] + 1 && right[j] == right[j - 1] + 1;
    }
  }
};

// out: classes x kLanes, the given columns of a source row.
template <class T>
SEAMSEG_CLONES void gather_columns(
    const T* row, const Shape& shape, const int64_t* columns, bool consecutive, wide_t<T>* SEAMSEG_RESTRICT out) {
  const int64_t across = shape.column_stride;
  if (across == 1 && consecutive) {
    for (int64_t c = 0; c < shape.classes; ++c) {
      const T* source = row + c * shape.class_stride + columns[0];
      for (int64_t j = 0; j < kLanes; ++j) out[c * kLanes + j] = load(source + j);
    }
  } else if (shape.class_stride == 1) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const T* source = row + columns[j] * across;
      for (int64_t c = 0; c < shape.classes; ++c) out[c * kLanes + j] = load(source + c);
    }
  } else {
    for (int64_t c = 0; c < shape.classes; ++c) {
      const T* source = row + c * shape.class_stride;
      for (int64_t j = 0; j < kLanes; ++j) out[c * kLanes + j] = load(source + columns[j] * across);
    }
  }
}

// What the output pixels of kLanes cells are made of: the logits in the four corners of each cell (classes x kLanes) and
// the weights of its left and right corners by phase (phases x kLanes).
template <class W>
struct Cells {
  int64_t phases;
  Lanes lanes;
  std::vector<W> top_left, top_right, bottom_left, bottom_right, left_weight, right_weight;

  Cells(int64_t classes, int64_t longest)
      : phases(longest),
        top_left(classes * kLanes),
        top_right(classes * kLanes),
        bottom_left(classes * kLanes),
        bottom_right(classes * kLanes),
        left_weight(longest * kLanes),
        right_weight(longest * kLanes) {}

  int64_t pixels() const { return phases * kLanes; }

  template <class T>
  void read(const T* logits, const Shape& shape, const Span& rows, const Axis& columns, const Span* const* cells,
            int64_t n) {
    lanes.set(cells, n);
    const T* top = logits + rows.first * shape.row_stride;
    const T* bottom = logits + rows.second * shape.row_stride;
    gather_columns(top, shape, lanes.left, lanes.consecutive, top_left.data());
    gather_columns(top, shape, lanes.right, lanes.consecutive, top_right.data());
    gather_columns(bottom, shape, lanes.left, lanes.consecutive, bottom_left.data());
    gather_columns(bottom, shape, lanes.right, lanes.consecutive, bottom_right.data());
    for (int64_t p = 0; p < phases; ++p) {
      for (int64_t j = 0; j < kLanes; ++j) {
        const Span& span = *lanes.span[j];
        const W weight = columns.weight[std::min(span.begin + p, span.end - 1)];
        left_weight[p * kLanes + j] = 1 - weight;
        right_weight[p * kLanes + j] = weight;
      }
    }
  }

  // f(lane and phase as one index, output column) of every output pixel of the cells in a row
  template <class F>
  void each_pixel(F&& f) const {
    for (int64_t j = 0; j < lanes.count; ++j) {
      const Span& span = *lanes.span[j];
      for (int64_t x = span.begin; x < span.end; ++x) f((x - span.begin) * kLanes + j, x);
    }
  }
};

}  // namespace seamseg::upsampling
