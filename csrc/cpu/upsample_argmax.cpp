// The best class of each pixel of upsampled logits. Where the four corners of a cell agree no interpolation can change
// the class, to the bit: of finite logits, weights are not negative and rounding is monotone. Only the other cells are interpolated.
#include <limits>

#include "common.h"

#include "../no_contraction.h"  // ties fall as in plain torch
#include "upsample.h"

namespace seamseg {
namespace {

using namespace upsampling;

// NaN is above all numbers, as in torch; the first of equals stays.
template <bool kNan, class W>
SEAMSEG_INLINE bool above(W value, W best) {
  return kNan ? (value > best) | ((value != value) & (best == best)) : value > best;
}

// scores: classes x kLanes
template <class W>
SEAMSEG_CLONES void best_of_lanes(const W* scores, int64_t classes, W* SEAMSEG_RESTRICT best,
                                  int32_t* SEAMSEG_RESTRICT index) {
  for (int64_t j = 0; j < kLanes; ++j) {
    best[j] = scores[j];
    index[j] = 0;
  }
  for (int64_t c = 1; c < classes; ++c) {
    const W* score = scores + c * kLanes;
    for (int64_t j = 0; j < kLanes; ++j) {
      const bool take = above<true>(score[j], best[j]);
      best[j] = take ? score[j] : best[j];
      index[j] = take ? static_cast<int32_t>(c) : index[j];
    }
  }
}

template <class W>
SEAMSEG_CLONES bool all_finite(const std::vector<W>& values) {
  const W limit = std::numeric_limits<W>::max();
  const W* p = values.data();
  const auto count = static_cast<int64_t>(values.size());
  int32_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong |= static_cast<int32_t>(!((p[i] <= limit) & (p[i] >= -limit)));
  return wrong == 0;
}

// One output row of the cells: `index` (phases x kLanes) gets the classes.
template <bool kNan, class W>
SEAMSEG_CLONES void best_of_row(const Cells<W>& cells, int64_t classes, W weight, W* SEAMSEG_RESTRICT best,
                                int32_t* SEAMSEG_RESTRICT index) {
  const int64_t phases = cells.phases;
  const W upper = 1 - weight;
  for (int64_t i = 0; i < phases * kLanes; ++i) {
    best[i] = -std::numeric_limits<W>::infinity();
    index[i] = 0;
  }
  for (int64_t c = 0; c < classes; ++c) {
    const W* SEAMSEG_RESTRICT tl = cells.top_left.data() + c * kLanes;
    const W* SEAMSEG_RESTRICT tr = cells.top_right.data() + c * kLanes;
    const W* SEAMSEG_RESTRICT bl = cells.bottom_left.data() + c * kLanes;
    const W* SEAMSEG_RESTRICT br = cells.bottom_right.data() + c * kLanes;
    W left[kLanes], right[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) {
      left[j] = upper * tl[j] + weight * bl[j];
      right[j] = upper * tr[j] + weight * br[j];
    }
    for (int64_t p = 0; p < phases; ++p) {
      const W* SEAMSEG_RESTRICT lw = cells.left_weight.data() + p * kLanes;
      const W* SEAMSEG_RESTRICT rw = cells.right_weight.data() + p * kLanes;
      W* SEAMSEG_RESTRICT b = best + p * kLanes;
      int32_t* SEAMSEG_RESTRICT k = index + p * kLanes;
      for (int64_t j = 0; j < kLanes; ++j) {
        const W value = lw[j] * left[j] + rw[j] * right[j];
        const bool take = above<kNan>(value, b[j]);
        b[j] = take ? value : b[j];
        k[j] = take ? static_cast<int32_t>(c) : k[j];
      }
    }
  }
}

// The best class of every source pixel in the rows `begin .. end - 1`.
template <class T>
void best_of_source(const T* logits, const Shape& shape, int64_t begin, int64_t end, int32_t* out) {
  using W = wide_t<T>;
  std::vector<W> scores(shape.classes * kLanes);
  W best[kLanes];
  int32_t index[kLanes];
  int64_t columns[kLanes];
  for (int64_t y = begin; y < end; ++y) {
    for (int64_t x = 0; x < shape.width; x += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) columns[j] = std::min(x + j, shape.width - 1);
      gather_columns(logits + y * shape.row_stride, shape, columns, x + kLanes <= shape.width, scores.data());
      best_of_lanes(scores.data(), shape.classes, best, index);
      std::copy_n(index, std::min(kLanes, shape.width - x), out + y * shape.width + x);
    }
  }
}

// The output rows of one span of source rows.
template <class T>
void argmax_rows(const T* logits, const Shape& shape, const Axis& rows, const Axis& columns, const Span& span,
                 const int32_t* source, std::vector<const Span*>& unsure, Cells<wide_t<T>>& cells, int64_t* out) {
  using W = wide_t<T>;
  const auto width = static_cast<int64_t>(columns.weight.size());
  const int32_t* top = source + span.first * shape.width;
  const int32_t* bottom = source + span.second * shape.width;
  int64_t* line = out + span.begin * width;
  unsure.clear();
  for (const Span& cell : columns.spans) {
    const int32_t k = top[cell.first];
    if (k != top[cell.second] || k != bottom[cell.first] || k != bottom[cell.second]) unsure.push_back(&cell);
    for (int64_t x = cell.begin; x < cell.end; ++x) line[x] = k;
  }
  for (int64_t y = span.begin + 1; y < span.end; ++y) std::copy_n(line, width, out + y * width);

  std::vector<W> best(cells.pixels());
  std::vector<int32_t> index(cells.pixels());
  for (size_t start = 0; start < unsure.size(); start += kLanes) {
    const auto count = static_cast<int64_t>(std::min<size_t>(kLanes, unsure.size() - start));
    cells.read(logits, shape, span, columns, unsure.data() + start, count);
    const bool finite = all_finite(cells.top_left) && all_finite(cells.top_right) && all_finite(cells.bottom_left) &&
                        all_finite(cells.bottom_right);
    for (int64_t y = span.begin; y < span.end; ++y) {
      if (finite) {
        best_of_row<false, W>(cells, shape.classes, rows.weight[y], best.data(), index.data());
      } else {
        best_of_row<true, W>(cells, shape.classes, rows.weight[y], best.data(), index.data());
      }
      cells.each_pixel([&](int64_t i, int64_t x) { out[y * width + x] = index[i]; });
    }
  }
}

Tensor upsample_argmax(const Tensor& logits, int64_t padded_height, int64_t padded_width, int64_t height,
                       int64_t width) {
  const Shape shape = check_upsample("upsample_argmax", logits, padded_height, padded_width, height, width);
  Tensor result = torch::stable::new_empty(logits, {height, width}, ScalarType::Long);
  int64_t* out = mutable_data<int64_t>(result);
  const Axis rows(shape.height, padded_height, height, height);
  const Axis columns(shape.width, padded_width, width, kMostPhases);
  std::vector<int32_t> source(shape.height * shape.width);
  dispatch_floating(logits, "upsample_argmax", [&](auto zero) {
    using T = decltype(zero);
    const T* values = data<T>(logits);
    // every thread writes rows of its own, in both loops
    torch::stable::parallel_for(0, shape.height, 8, [&](int64_t begin, int64_t end) {
      best_of_source(values, shape, begin, end, source.data());
    });
    torch::stable::parallel_for(0, static_cast<int64_t>(rows.spans.size()), 4, [&](int64_t begin, int64_t end) {
      std::vector<const Span*> unsure;
      Cells<wide_t<T>> cells(shape.classes, columns.longest);
      for (int64_t i = begin; i < end; ++i) {
        argmax_rows(values, shape, rows, columns, rows.spans[i], source.data(), unsure, cells, out);
      }
    });
  });
  return result;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("upsample_argmax", TORCH_BOX(&seamseg::upsample_argmax)); }
