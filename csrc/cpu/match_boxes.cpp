// The best partner of each box of two sets. Boxes of the first set are taken in chunks: neighbours there are mostly
// neighbours in the image (anchors are), so that most chunks are apart from most boxes of the second set.
#include "boxes.h"

namespace seamseg {
namespace {

constexpr int64_t kChunk = 64;

template <class T>
struct Best {
  T iou;
  int64_t index;
};

// With an area like this the IoU with a box that is apart is 0, not NaN.
template <class T>
SEAMSEG_INLINE bool is_proper(T area) {
  return area > 0 && area < std::numeric_limits<T>::infinity();
}

// One chunk of `count` boxes, the first of them number `first`, against all of `b`. All bests start as (0, the first
// partner there is): what an IoU of 0 or more always comes to, so that pairs that are apart change nothing.
template <class S, class T>
SEAMSEG_CLONES void match_chunk(const S* a, int64_t first, int64_t count, const Columns<T>& b, int64_t m,
                                T* SEAMSEG_RESTRICT iou_a, int64_t* SEAMSEG_RESTRICT index_b, Best<T>* of_b) {
  T y0[kChunk], x0[kChunk], y1[kChunk], x1[kChunk], area[kChunk], iou[kChunk], best[kChunk];
  int32_t partner[kChunk];
  Box<T> hull = load_box<T>(a + 4 * first);
  bool proper = true;
  for (int64_t i = 0; i < kChunk; ++i) {
    // the last box again fills up the chunk: a repetition wins nothing
    const Box<T> box = load_box<T>(a + 4 * (first + std::min(i, count - 1)));
    y0[i] = box.y0;
    x0[i] = box.x0;
    y1[i] = box.y1;
    x1[i] = box.x1;
    area[i] = area_of(box);
    proper &= is_proper(area[i]);
    hull = {smaller(hull.y0, box.y0), smaller(hull.x0, box.x0), larger(hull.y1, box.y1), larger(hull.x1, box.x1)};
    best[i] = 0;
    partner[i] = 0;
  }
  for (int64_t j = 0; j < m; ++j) {
    const Box<T> other = b[j];
    const bool apart = common_height(hull, other) <= 0 || common_width(hull, other) <= 0;
    if (apart && proper && is_proper(b.area[j])) continue;
    const auto number = static_cast<int32_t>(j);
    const T rival = of_b[j].iou;
    int better = 0;
    for (int64_t i = 0; i < kChunk; ++i) {
      const T value = iou_of({y0[i], x0[i], y1[i], x1[i]}, area[i], other, b.area[j]);
      const bool wins = beats(value, best[i]);
      iou[i] = value;
      best[i] = wins ? value : best[i];
      partner[i] = wins ? number : partner[i];
      better |= beats(value, rival);
    }
    if (!better) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (beats(iou[i], of_b[j].iou)) of_b[j] = {iou[i], first + i};
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    iou_a[first + i] = best[i];
    index_b[first + i] = partner[i];
  }
}

template <class T>
Tensor filled(const Tensor& like, int64_t count, ScalarType type, T value) {
  Tensor out = torch::stable::new_empty(like, {count}, type);
  std::fill_n(mutable_data<T>(out), count, value);
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> match_boxes(const Tensor& a_, const Tensor& b_) {
  check_boxes(a_, "match_boxes");
  check_boxes(b_, "match_boxes");
  STD_TORCH_CHECK(a_.scalar_type() == b_.scalar_type(), "match_boxes: boxes must be of one type");
  const Tensor a = torch::stable::contiguous(a_), b = torch::stable::contiguous(b_);
  const int64_t n = a.size(0), m = b.size(0);
  STD_TORCH_CHECK(m <= std::numeric_limits<int32_t>::max(), "match_boxes: more than 2^31 boxes");
  std::tuple<Tensor, Tensor, Tensor, Tensor> result;
  dispatch_floating(a, "match_boxes", [&](auto zero) {
    using S = decltype(zero);
    using T = wide_t<S>;
    const ScalarType type = wide_type(a);
    const int64_t none = n == 0 || m == 0 ? -1 : 0;
    result = {filled<T>(a, n, type, 0), filled<int64_t>(a, n, ScalarType::Long, none), filled<T>(a, m, type, 0),
              filled<int64_t>(a, m, ScalarType::Long, none)};
    if (none < 0) return;
    const auto& [iou_a, index_b, iou_b, index_a] = result;
    const auto columns = columns_of<T>(data<S>(b), m);
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    const int64_t parts =
        std::max<int64_t>(1, std::min({int64_t{torch::stable::get_num_threads()}, chunks, n * m >> 14}));
    // Every part writes its boxes of a and has its own bests of b. These are joined in the order of the parts, which
    // gives what one part alone would.
    std::vector<std::vector<Best<T>>> of_b(parts);
    torch::stable::parallel_for(0, parts, 1, [&](int64_t first_part, int64_t last_part) {
      for (int64_t part = first_part; part < last_part; ++part) {
        of_b[part].assign(m, {T(0), 0});
        for (int64_t chunk = chunks * part / parts; chunk < chunks * (part + 1) / parts; ++chunk) {
          const int64_t first = chunk * kChunk;
          match_chunk(data<S>(a), first, std::min(kChunk, n - first), columns, m, mutable_data<T>(iou_a),
                      mutable_data<int64_t>(index_b), of_b[part].data());
        }
      }
    });
    for (int64_t j = 0; j < m; ++j) {
      Best<T> best = of_b[0][j];
      for (const auto& part : of_b) best = beats(part[j].iou, best.iou) ? part[j] : best;
      mutable_data<T>(iou_b)[j] = best.iou;
      mutable_data<int64_t>(index_a)[j] = best.index;
    }
  });
  return result;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) { m.impl("match_boxes", TORCH_BOX(&seamseg::match_boxes)); }
