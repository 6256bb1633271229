// The taps of all bins of all boxes, made once for a call on the CPU.
#pragma once

#include "../roi_arguments.h"

namespace seamseg {

// A box must name an image and a level that exist: nothing else decides where the kernels read and write.
inline void check_roi_places(const RoiCall& call) {
  const int64_t* index = data<int64_t>(call.index);
  const int64_t* level = data_or_null<int64_t>(call.level);
  const auto levels = static_cast<int64_t>(call.maps.size());
  for (int64_t box = 0; box < call.count; ++box) {
    const int64_t number = level != nullptr ? level[box] : 0;
    STD_TORCH_CHECK(number >= 0 && number < levels, "roi_sampling: level of box ", box, " is ", number, ", there are ",
                    levels);
    const int64_t images = call.maps[number].images;
    STD_TORCH_CHECK(index[box] >= 0 && index[box] < images, "roi_sampling: index of box ", box, " is ", index[box],
                    ", there are ", images, " images");
  }
}

template <class B>
struct RoiTaps {
  std::vector<RoiTap<B>> rows, columns;  // count x height, count x width
  const int64_t* index;
  const int64_t* levels;

  int64_t level(int64_t box) const { return levels != nullptr ? levels[box] : 0; }

  explicit RoiTaps(const RoiCall& call)
      : rows(call.count * call.grid.height),
        columns(call.count * call.grid.width),
        index(data<int64_t>(call.index)),
        levels(data_or_null<int64_t>(call.level)) {
    const B* boxes = data<B>(call.boxes);
    for (int64_t box = 0; box < call.count; ++box) {
      const RoiMap& map = call.maps[level(box)];
      for (int64_t i = 0; i < call.grid.height; ++i) {
        rows[box * call.grid.height + i] = roi_tap_y(boxes + 4 * box, i, map, call.grid);
      }
      for (int64_t j = 0; j < call.grid.width; ++j) {
        columns[box * call.grid.width + j] = roi_tap_x(boxes + 4 * box, j, map, call.grid);
      }
    }
  }
};

}  // namespace seamseg
