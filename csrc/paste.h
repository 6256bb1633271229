// Which cells of an instance's mask a pixel reads, for both sides. The order of operations is that of the plain form,
// and a product is never left to be fused with a sum.
#pragma once

#include <cmath>
#include <cstdint>

#include "rounding.h"

namespace seamseg {

// The pixels start .. stop along one axis that a box can reach; centre c of the axis (0 .. 1) reads begin + c * extent.
struct PasteAxis {
  int64_t start = 0, stop = 0;
  float begin = 0, extent = 0;
  int32_t size = 0, cells = 0;
};

SEAMSEG_HD PasteAxis paste_axis(float low, float high, int64_t size, int64_t cells) {
  PasteAxis axis;
  axis.size = static_cast<int32_t>(size);
  axis.cells = static_cast<int32_t>(cells);
  const double from = low, to = high;
  if (!(to - from > 0 && to - from < HUGE_VAL && to > 0 && from < static_cast<double>(size)) || cells == 0) return axis;
  // below half a cell outside the probability is under .5; one pixel more covers rounding
  const double start = floor(from) - 1, stop = ceil(to) + 1;
  axis.start = start > 0 ? static_cast<int64_t>(start) : 0;
  axis.stop = stop < static_cast<double>(size) ? static_cast<int64_t>(stop) : size;
  const float span = high - low;
  axis.begin = rounded_product(-low / span, static_cast<float>(cells));
  axis.extent = rounded_product((static_cast<float>(size) - low) / span, static_cast<float>(cells)) - axis.begin;
  return axis;
}

// The two cells that a pixel reads, and their weights: 0 for a cell outside the mask.
struct PasteTap {
  int32_t first, second;
  float first_weight, second_weight;
};

SEAMSEG_HD PasteTap paste_tap(const PasteAxis& axis, int64_t pixel) {
  const float centre = (static_cast<float>(pixel) + 0.5f) / static_cast<float>(axis.size);
  const float low = -2.0f, high = static_cast<float>(axis.cells) + 2.0f;
  float s = axis.begin + rounded_product(centre, axis.extent);
  s = s > low ? (s < high ? s : high) : low;  // NaN too
  const float k = floorf(s - 0.5f);
  const float fraction = s - 0.5f - k;
  const int32_t first = static_cast<int32_t>(k), second = first + 1, last = axis.cells - 1;
  PasteTap tap;
  tap.first_weight = first >= 0 && first <= last ? 1.0f - fraction : 0.0f;
  tap.second_weight = second >= 0 && second <= last ? fraction : 0.0f;
  tap.first = first < 0 ? 0 : (first > last ? last : first);
  tap.second = second < 0 ? 0 : (second > last ? last : second);
  return tap;
}

SEAMSEG_HD double paste_blend(float first, float second, float first_weight, float second_weight) {
  return static_cast<double>(first) * first_weight + static_cast<double>(second) * second_weight;
}

// Whether an instance with so many pixels, so many of them still free, becomes a segment.
SEAMSEG_HD bool paste_keeps(int64_t area, int64_t free, double overlap_threshold, bool keep_empty) {
  if (area > 0 && static_cast<double>(area - free) / static_cast<double>(area) > overlap_threshold) return false;
  return free > 0 || keep_empty;
}

}  // namespace seamseg
