// Overlaps of boxes (y0, x0, y1, x1), rounded step by step as plain torch rounds them: the CPU, its clones for different
// processors, the GPU and plain torch give the same bits. CPU sources that include this switch contraction off.
#pragma once

#include "rounding.h"
#include "types.h"

namespace seamseg {

template <class T>
struct Box {
  T y0, x0, y1, x1;
};

template <class T>
SEAMSEG_HD T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
SEAMSEG_HD T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
SEAMSEG_HD T positive_part(T a) {
  return a < 0 ? T(0) : a;  // NaN stays
}

// Signed; NaN if a corner is.
template <class T>
SEAMSEG_HD T area_of(const Box<T>& a) {
  return product(a.y1 - a.y0, a.x1 - a.x0);
}

// Sides of the intersection, negative where the boxes are apart. A NaN corner may get lost here: the area has it.
template <class T>
SEAMSEG_HD T common_height(const Box<T>& a, const Box<T>& b) {
  return smaller(a.y1, b.y1) - larger(a.y0, b.y0);
}
template <class T>
SEAMSEG_HD T common_width(const Box<T>& a, const Box<T>& b) {
  return smaller(a.x1, b.x1) - larger(a.x0, b.x0);
}

template <class T>
SEAMSEG_HD T intersection_of(const Box<T>& a, const Box<T>& b) {
  return product(positive_part(common_height(a, b)), positive_part(common_width(a, b)));
}

// Never negative; NaN for two empty boxes, and where a corner is NaN.
template <class T>
SEAMSEG_HD T iou_of(const Box<T>& a, T area_a, const Box<T>& b, T area_b) {
  const T inter = intersection_of(a, b);
  return inter / ((area_a + area_b) - inter);
}

// Of two rivals for the largest IoU the later one wins only so; the first NaN beats everything.
template <class T>
SEAMSEG_HD bool beats(T iou, T best) {
  return !(iou <= best) && best == best;
}

}  // namespace seamseg
