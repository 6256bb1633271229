// Boxes as columns, the form in which loops over them become vectors.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common.h"

#include "../no_contraction.h"
#include "../boxes.h"

namespace seamseg {

template <class T, class S>
SEAMSEG_INLINE Box<T> load_box(const S* p) {
  return {load(p), load(p + 1), load(p + 2), load(p + 3)};
}

template <class T>
struct Columns {
  std::vector<T> y0, x0, y1, x1, area;

  explicit Columns(int64_t count) : y0(count), x0(count), y1(count), x1(count), area(count) {}

  SEAMSEG_INLINE Box<T> operator[](int64_t i) const { return {y0[i], x0[i], y1[i], x1[i]}; }
  SEAMSEG_INLINE void set(int64_t i, const Box<T>& box, T its_area) {
    y0[i] = box.y0;
    x0[i] = box.x0;
    y1[i] = box.y1;
    x1[i] = box.x1;
    area[i] = its_area;
  }
};

template <class T, class S>
Columns<T> columns_of(const S* boxes, int64_t count) {
  Columns<T> columns(count);
  for (int64_t i = 0; i < count; ++i) {
    const Box<T> box = load_box<T>(boxes + 4 * i);
    columns.set(i, box, area_of(box));
  }
  return columns;
}

inline void check_boxes(const Tensor& boxes, const char* op) {
  STD_TORCH_CHECK(boxes.dim() == 2 && boxes.size(1) == 4, op, ": boxes must be N x 4");
}

}  // namespace seamseg
