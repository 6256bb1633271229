// From the outputs of a network to a map of segments: pasting masks, filling free pixels, areas and boxes of the ids.
// Arrays are contiguous; the caller has checked sizes and ranges.
#include <cmath>

#include "../label_rows.h"
#include "../paste_rows.h"
#include "answer.h"

namespace seamseg {
namespace {

constexpr int64_t kClasses = 256;

// Whether the probability at each pixel of a row exceeds .5.
SEAMSEG_CLONES void threshold_row(const float* SEAMSEG_RESTRICT upper, const float* SEAMSEG_RESTRICT lower,
                                  const PasteTap& tap, int64_t n, uint8_t* SEAMSEG_RESTRICT out) {
  const float first = tap.first_weight, second = tap.second_weight;
  for (int64_t x = 0; x < n; ++x) out[x] = paste_blend(upper[x], lower[x], first, second) > 0.5;
}

void sample_mask(const float* mask, const PasteAxis& y, const PasteAxis& x, uint8_t* crop) {
  const int64_t columns = x.stop - x.start;
  std::vector<PasteTap> taps(columns);
  for (int64_t i = 0; i < columns; ++i) taps[i] = paste_tap(x, x.start + i);
  std::vector<float> across(static_cast<size_t>(y.cells) * columns);
  for (int64_t cell = 0; cell < y.cells; ++cell) {
    blend_columns(mask + cell * x.cells, taps.data(), columns, across.data() + cell * columns);
  }
  for (int64_t row = y.start; row < y.stop; ++row, crop += columns) {
    const PasteTap tap = paste_tap(y, row);
    threshold_row(across.data() + tap.first * columns, across.data() + tap.second * columns, tap, columns, crop);
  }
}

}  // namespace
}  // namespace seamseg

// Pastes `count` masks (cells_y x cells_x probabilities each, best score first) into an id map; see
// seamseg::paste_instances. Returns null on an error.
SEAMSEG_EXPORT const void* seamseg_paste_masks(int32_t* ids, int64_t height, int64_t width, const float* masks,
                                               const float* boxes, int64_t count, int64_t cells_y, int64_t cells_x,
                                               double overlap_threshold, int32_t keep_empty, bool* keeps, char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    const auto alone = [](int64_t rows, int64_t, auto&& f) { f(0, rows); };
    seamseg::paste_instances(masks, boxes, count, cells_y, cells_x, ids, height, width, overlap_threshold, 1,
                             keep_empty != 0, keeps, alone);
    return ids;
  });
}

// Writes the pixels (y0, x0, y1, x1) that a box can reach on an image.
SEAMSEG_EXPORT void seamseg_paste_region(const float* box, int64_t cells_y, int64_t cells_x, int64_t height,
                                         int64_t width, int64_t* region) {
  const seamseg::PasteAxis y = seamseg::paste_axis(box[0], box[2], height, cells_y);
  const seamseg::PasteAxis x = seamseg::paste_axis(box[1], box[3], width, cells_x);
  const int64_t found[4] = {y.start, x.start, y.stop, x.stop};
  std::copy(found, found + 4, region);
}

// Writes the pixels of one mask within its region, 1 where the probability exceeds .5. Returns null on an error.
SEAMSEG_EXPORT const void* seamseg_paste_mask(const float* mask, const float* box, int64_t cells_y, int64_t cells_x,
                                              int64_t height, int64_t width, uint8_t* crop, char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    seamseg::sample_mask(mask, seamseg::paste_axis(box[0], box[2], height, cells_y),
                         seamseg::paste_axis(box[1], box[3], width, cells_x), crop);
    return crop;
  });
}

// Counts the pixels of each of 256 classes, where the id map is 0, or everywhere if it is null.
SEAMSEG_EXPORT void seamseg_count_classes(const uint8_t* classes, const int32_t* ids, int64_t pixels, int64_t* sums) {
  constexpr int64_t n = seamseg::kClasses;
  int64_t counts[(n + 1) * seamseg::kTables] = {};
  seamseg::count_range(classes, ids, 0, pixels, n, counts);
  std::fill_n(sums, n, int64_t{0});
  for (int64_t i = 0; i < n * seamseg::kTables; ++i) sums[i / seamseg::kTables] += counts[i];
}

// Sets every free pixel to the id of its class, of 256; 0 leaves it free.
SEAMSEG_EXPORT void seamseg_fill_free(int32_t* ids, const uint8_t* classes, int64_t pixels, const int32_t* id_of_class) {
  seamseg::fill_range(ids, classes, pixels, id_of_class, seamseg::kClasses);
}

// Writes the pixels of each id below n, and its box (y0, x0, y1, x1), -1 for those that are absent. Returns null on an
// error.
SEAMSEG_EXPORT const void* seamseg_segments(const int32_t* ids, int64_t height, int64_t width, int64_t n, int64_t* areas,
                                            float* boxes, char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    std::vector<seamseg::Extent> extents(n);
    std::fill_n(areas, n, int64_t{0});
    seamseg::extract_rows(ids, 0, height, height, width, extents, areas);
    for (int64_t id = 0; id < n; ++id) seamseg::write_box(extents[id], boxes + 4 * id);
    return areas;
  });
}
