// Where the samples of a box lie and which pixels they read, with the same roundings on the host, on the device and in
// plain torch.
#pragma once

#include <cmath>

#include "rounding.h"
#include "types.h"

namespace seamseg {

// One feature map; strides in elements. `scale` is what boxes are multiplied by, where boxes are mapped at all.
struct RoiMap {
  int64_t images, height, width;
  int64_t stride_image, stride_channel, stride_row, stride_column;
  double scale_y, scale_x;
};

// What one call does with every box.
struct RoiGrid {
  int64_t height, width;  // samples of a box
  bool nearest, zero;     // interpolation, padding
  bool mapped;            // boxes are in pixels of the padded image, not of the map
};

// The two pixels that a sample reads along one axis, and their weights.
template <class B>
struct RoiTap {
  int64_t first, second;
  B weight_first, weight_second;
};

template <class B>
SEAMSEG_HD B roi_corner(B corner, double scale, bool mapped) {
  const B half = static_cast<B>(0.5);
  return mapped ? rounded_product(corner - half, static_cast<B>(scale)) + half : corner;
}

template <class B>
SEAMSEG_HD B roi_centre(B low, B high, int64_t bin, int64_t bins) {
  const B step = (static_cast<B>(bin) + static_cast<B>(0.5)) / static_cast<B>(bins);
  return low + rounded_product(step, high - low);
}

SEAMSEG_HD int64_t roi_clamp(int64_t k, int64_t size) { return k < 0 ? 0 : (k >= size ? size - 1 : k); }

template <class B>
SEAMSEG_HD RoiTap<B> roi_tap(B s, int64_t size, bool nearest, bool zero) {
  const B low = -2, high = static_cast<B>(size + 2), half = static_cast<B>(0.5);
  // far and undefined coordinates would overflow the integers; they all read the same border or nothing
  if (!(s >= low)) s = low;
  if (s > high) s = high;
  RoiTap<B> tap;
  const B k = nearest ? std::floor(s) : std::floor(s - half);
  const auto first = static_cast<int64_t>(k), second = nearest ? first : first + 1;
  const B fraction = nearest ? B(0) : s - half - k;
  tap.weight_first = zero && (first < 0 || first >= size) ? B(0) : 1 - fraction;
  tap.weight_second = zero && (second < 0 || second >= size) ? B(0) : fraction;
  tap.first = roi_clamp(first, size);
  tap.second = roi_clamp(second, size);
  return tap;
}

// The taps of bin `bin` of a box along the rows and along the columns of a map.
template <class B>
SEAMSEG_HD RoiTap<B> roi_tap_y(const B* box, int64_t bin, const RoiMap& map, const RoiGrid& grid) {
  const B low = roi_corner(box[0], map.scale_y, grid.mapped), high = roi_corner(box[2], map.scale_y, grid.mapped);
  return roi_tap(roi_centre(low, high, bin, grid.height), map.height, grid.nearest, grid.zero);
}
template <class B>
SEAMSEG_HD RoiTap<B> roi_tap_x(const B* box, int64_t bin, const RoiMap& map, const RoiGrid& grid) {
  const B low = roi_corner(box[1], map.scale_x, grid.mapped), high = roi_corner(box[3], map.scale_x, grid.mapped);
  return roi_tap(roi_centre(low, high, bin, grid.width), map.width, grid.nearest, grid.zero);
}

}  // namespace seamseg
