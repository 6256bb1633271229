// Cross-entropy of upsampled logits over the hardest pixels: scores exist for one row of a few cells at a time, in the
// forward pass and again in the backward pass.
#include <atomic>
#include <limits>

#include "../select.h"
#include "common.h"
#include "fast_math.h"
#include "upsample.h"

namespace seamseg {
namespace {

using namespace upsampling;

constexpr int64_t kVoid = 255;

// Left and right ends of an output row in the cells, for one class.
template <class W>
SEAMSEG_INLINE void interpolate_down(const Cells<W>& cells, int64_t c, W weight, W* SEAMSEG_RESTRICT left,
                                     W* SEAMSEG_RESTRICT right) {
  const W upper = 1 - weight;
  const int64_t start = c * kLanes;
  const W *tl = cells.top_left.data() + start, *tr = cells.top_right.data() + start;
  const W *bl = cells.bottom_left.data() + start, *br = cells.bottom_right.data() + start;
  for (int64_t j = 0; j < kLanes; ++j) {
    left[j] = upper * tl[j] + weight * bl[j];
    right[j] = upper * tr[j] + weight * br[j];
  }
}

// Scores of one output row (classes x pixels of the cells), their maximum and the log of the sum of exp(score - maximum).
template <class W>
SEAMSEG_CLONES void score_row(const Cells<W>& cells, int64_t classes, W weight, W* SEAMSEG_RESTRICT scores,
                              W* SEAMSEG_RESTRICT highest, W* SEAMSEG_RESTRICT log_sum) {
  const int64_t pixels = cells.pixels();
  for (int64_t i = 0; i < pixels; ++i) {
    highest[i] = -std::numeric_limits<W>::infinity();
    log_sum[i] = 0;
  }
  for (int64_t c = 0; c < classes; ++c) {
    W left[kLanes], right[kLanes];
    interpolate_down(cells, c, weight, left, right);
    for (int64_t p = 0; p < cells.phases; ++p) {
      const int64_t start = p * kLanes;
      const W* SEAMSEG_RESTRICT lw = cells.left_weight.data() + start;
      const W* SEAMSEG_RESTRICT rw = cells.right_weight.data() + start;
      W* SEAMSEG_RESTRICT out = scores + c * pixels + start;
      W* SEAMSEG_RESTRICT top = highest + start;
      for (int64_t j = 0; j < kLanes; ++j) {
        const W score = lw[j] * left[j] + rw[j] * right[j];
        out[j] = score;
        top[j] = score > top[j] ? score : top[j];
      }
    }
  }
  for (int64_t c = 0; c < classes; ++c) {
    const W* SEAMSEG_RESTRICT score = scores + c * pixels;
    for (int64_t i = 0; i < pixels; ++i) log_sum[i] += fast_exp(score[i] - highest[i]);
  }
  for (int64_t i = 0; i < pixels; ++i) log_sum[i] = fast_log(log_sum[i]);
}

// The part of the gradient of the corners that does not depend on the target: softmax times share, spread to the corners.
template <class W>
SEAMSEG_CLONES void spread_row(const Cells<W>& cells, int64_t classes, W weight, const W* SEAMSEG_RESTRICT normaliser,
                               const W* SEAMSEG_RESTRICT share, Cells<W>& gradient) {
  const W upper = 1 - weight;
  for (int64_t c = 0; c < classes; ++c) {
    W left[kLanes], right[kLanes], from_left[kLanes] = {}, from_right[kLanes] = {};
    interpolate_down(cells, c, weight, left, right);
    for (int64_t p = 0; p < cells.phases; ++p) {
      const int64_t start = p * kLanes;
      const W* SEAMSEG_RESTRICT lw = cells.left_weight.data() + start;
      const W* SEAMSEG_RESTRICT rw = cells.right_weight.data() + start;
      for (int64_t j = 0; j < kLanes; ++j) {
        const W score = lw[j] * left[j] + rw[j] * right[j];
        const W part = fast_exp(score - normaliser[start + j]) * share[start + j];
        from_left[j] += lw[j] * part;
        from_right[j] += rw[j] * part;
      }
    }
    W* SEAMSEG_RESTRICT tl = gradient.top_left.data() + c * kLanes;
    W* SEAMSEG_RESTRICT tr = gradient.top_right.data() + c * kLanes;
    W* SEAMSEG_RESTRICT bl = gradient.bottom_left.data() + c * kLanes;
    W* SEAMSEG_RESTRICT br = gradient.bottom_right.data() + c * kLanes;
    for (int64_t j = 0; j < kLanes; ++j) {
      tl[j] += upper * from_left[j];
      tr[j] += upper * from_right[j];
      bl[j] += weight * from_left[j];
      br[j] += weight * from_right[j];
    }
  }
}

// Add classes x kLanes to columns of a row of the gradient (classes x height x width).
template <class W>
SEAMSEG_CLONES void scatter_columns(const W* SEAMSEG_RESTRICT part, const Lanes& lanes, const int64_t* columns,
                                    const Shape& shape, W* SEAMSEG_RESTRICT row) {
  const int64_t plane = shape.height * shape.width;
  for (int64_t c = 0; c < shape.classes; ++c) {
    W* SEAMSEG_RESTRICT out = row + c * plane;
    const W* SEAMSEG_RESTRICT in = part + c * kLanes;
    if (lanes.consecutive) {
      W* SEAMSEG_RESTRICT here = out + columns[0];
      for (int64_t j = 0; j < kLanes; ++j) here[j] += in[j];
    } else {
      for (int64_t j = 0; j < lanes.count; ++j) out[columns[j]] += in[j];
    }
  }
}

std::vector<const Span*> all_of(const Axis& axis) {
  std::vector<const Span*> cells;
  for (const Span& span : axis.spans) cells.push_back(&span);
  return cells;
}

// f(first cell, number of cells) for chunks of at most kLanes
template <class F>
void each_chunk(const std::vector<const Span*>& cells, F&& f) {
  for (size_t start = 0; start < cells.size(); start += kLanes) {
    f(cells.data() + start, static_cast<int64_t>(std::min<size_t>(kLanes, cells.size() - start)));
  }
}

// Cross-entropy and normaliser of every pixel. False if a class of the target does not exist.
template <class T>
bool entropies(const Tensor& logits, const Shape& shape, const Axis& rows, const Axis& columns, const int64_t* target,
               wide_t<T>* entropy, wide_t<T>* normaliser) {
  using W = wide_t<T>;
  const auto width = static_cast<int64_t>(columns.weight.size());
  const std::vector<const Span*> all = all_of(columns);
  std::atomic<bool> right{true};
  // every thread writes the output rows of its own spans
  torch::stable::parallel_for(0, static_cast<int64_t>(rows.spans.size()), 1, [&](int64_t begin, int64_t end) {
    Cells<W> cells(shape.classes, columns.longest);
    const int64_t pixels = cells.pixels();
    std::vector<W> scores(shape.classes * pixels), highest(pixels), log_sum(pixels);
    for (int64_t band = begin; band < end; ++band) {
      const Span& span = rows.spans[band];
      each_chunk(all, [&](const Span* const* chunk, int64_t count) {
        cells.read(data<T>(logits), shape, span, columns, chunk, count);
        for (int64_t y = span.begin; y < span.end; ++y) {
          score_row(cells, shape.classes, static_cast<W>(rows.weight[y]), scores.data(), highest.data(),
                    log_sum.data());
          cells.each_pixel([&](int64_t i, int64_t x) {
            const int64_t pixel = y * width + x, k = target[pixel];
            const bool inside = k >= 0 && k < shape.classes && k != kVoid;
            if (!inside && k != kVoid) right.store(false, std::memory_order_relaxed);
            entropy[pixel] = inside ? (highest[i] - scores[k * pixels + i]) + log_sum[i] : 0;
            normaliser[pixel] = inside ? highest[i] + log_sum[i] : std::numeric_limits<W>::infinity();
          });
        }
      });
    }
  });
  return right.load();
}

// The key of the count-th largest value, and how many values of that key are among the `count`.
template <class W>
std::pair<typename Order<W>::key, int64_t> select(const W* values, int64_t total, int64_t count) {
  using K = typename Order<W>::key;
  K prefix = 0, known = 0;
  int64_t wanted = count;
  for (int shift = 8 * sizeof(K); shift > 0;) {
    const int bits = std::min(kDigitBits, shift);
    shift -= bits;
    const K mask = (K{1} << bits) - 1;
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(torch::stable::get_num_threads(), total >> 15));
    // every thread counts in a table of its own
    std::vector<std::vector<int64_t>> tables(parts, std::vector<int64_t>(size_t{1} << bits));
    torch::stable::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        int64_t* table = tables[part].data();
        for (int64_t i = total * part / parts; i < total * (part + 1) / parts; ++i) {
          const K key = order_key(values[i]);
          if ((key & known) == prefix) ++table[(key >> shift) & mask];
        }
      }
    });
    for (K digit = mask;; --digit) {
      int64_t here = 0;
      for (const auto& table : tables) here += table[digit];
      if (here >= wanted || digit == 0) {
        prefix |= digit << shift;
        break;
      }
      wanted -= here;
    }
    known |= mask << shift;
  }
  return {prefix, wanted};
}

// Mean of the `count` largest; the normaliser of all other pixels becomes infinite. Ties: the first ones are taken.
template <class W>
W keep_hardest(const W* entropy, W* normaliser, int64_t height, int64_t width, int64_t count) {
  const auto [threshold, wanted] = select(entropy, height * width, count);
  std::vector<double> sums(height);
  std::vector<int64_t> ties(height);
  // every thread writes sums and marks of its own rows
  torch::stable::parallel_for(0, height, 16, [&, threshold = threshold](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) {
      double sum = 0;
      int64_t equal = 0;
      for (int64_t i = y * width; i < (y + 1) * width; ++i) {
        const auto key = order_key(entropy[i]);
        sum += key > threshold ? entropy[i] : W{0};
        equal += key == threshold;
        if (key < threshold) normaliser[i] = std::numeric_limits<W>::infinity();
      }
      sums[y] = sum;
      ties[y] = equal;
    }
  });
  double sum = 0;
  int64_t left = wanted;
  for (int64_t y = 0; y < height; ++y) {
    sum += sums[y];
    if (ties[y] == 0) continue;
    for (int64_t i = y * width; i < (y + 1) * width; ++i) {
      if (order_key(entropy[i]) != threshold) continue;
      if (left > 0) {
        sum += entropy[i];
        --left;
      } else {
        normaliser[i] = std::numeric_limits<W>::infinity();
      }
    }
  }
  return static_cast<W>(sum / static_cast<double>(count));
}

std::tuple<Tensor, Tensor> upsample_ohem_loss(const Tensor& logits, int64_t padded_height, int64_t padded_width,
                                              const Tensor& target, double ohem) {
  const int64_t count = kept_pixels(logits, target, ohem);
  const int64_t height = target.size(0), width = target.size(1);
  const Shape shape = check_upsample(kOhemLoss, logits, padded_height, padded_width, height, width);
  const Axis rows(shape.height, padded_height, height, height);
  const Axis columns(shape.width, padded_width, width, kMostPhases);
  const Tensor classes = torch::stable::contiguous(target);
  const ScalarType type = wide_type(logits);
  Tensor loss = torch::stable::new_empty(logits, {}, type);
  Tensor normaliser = torch::stable::new_empty(logits, {height, width}, type);
  dispatch_floating(logits, kOhemLoss, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    std::vector<W> entropy(height * width);
    W* normalisers = mutable_data<W>(normaliser);
    const bool right =
        entropies<T>(logits, shape, rows, columns, data<int64_t>(classes), entropy.data(), normalisers);
    STD_TORCH_CHECK(right, kOhemLoss, ": target must hold classes 0 to ", shape.classes - 1, ", or 255 for void");
    *mutable_data<W>(loss) = keep_hardest(entropy.data(), normalisers, height, width, count);
  });
  return {loss, normaliser};
}

// The output rows of one span of source rows, added to the two source rows.
template <class W, class T>
void backward_band(const T* logits, const Shape& shape, const Axis& rows, const Axis& columns, const Span& span,
                   const std::vector<const Span*>& all, const int64_t* target, const W* normaliser, W share,
                   Cells<W>& cells, Cells<W>& part, W* gradient) {
  const auto width = static_cast<int64_t>(columns.weight.size());
  std::vector<W> normalisers(cells.pixels()), shares(cells.pixels());
  each_chunk(all, [&](const Span* const* chunk, int64_t count) {
    bool any = false;
    for (int64_t y = span.begin; y < span.end; ++y) {
      const W *first = normaliser + y * width + chunk[0]->begin, *last = normaliser + y * width + chunk[count - 1]->end;
      any = any || std::any_of(first, last, [](W v) { return v != std::numeric_limits<W>::infinity(); });
    }
    if (!any) return;
    cells.read(logits, shape, span, columns, chunk, count);
    for (auto* corner : {&part.top_left, &part.top_right, &part.bottom_left, &part.bottom_right}) {
      std::fill(corner->begin(), corner->end(), W{0});
    }
    for (int64_t y = span.begin; y < span.end; ++y) {
      const W lower = rows.weight[y], upper = 1 - lower;
      std::fill(normalisers.begin(), normalisers.end(), std::numeric_limits<W>::infinity());
      std::fill(shares.begin(), shares.end(), W{0});
      bool kept = false;
      cells.each_pixel([&](int64_t i, int64_t x) {
        const int64_t k = target[y * width + x];
        const W n = normaliser[y * width + x];
        if (n == std::numeric_limits<W>::infinity() || k < 0 || k >= shape.classes || k == kVoid) return;
        kept = true;
        normalisers[i] = n;
        shares[i] = share;
        const int64_t lane = k * kLanes + i % kLanes;
        const W left = share * cells.left_weight[i], right = share * cells.right_weight[i];
        part.top_left[lane] -= upper * left;
        part.top_right[lane] -= upper * right;
        part.bottom_left[lane] -= lower * left;
        part.bottom_right[lane] -= lower * right;
      });
      if (kept) spread_row(cells, shape.classes, lower, normalisers.data(), shares.data(), part);
    }
    W *top = gradient + span.first * shape.width, *bottom = gradient + span.second * shape.width;
    scatter_columns(part.top_left.data(), cells.lanes, cells.lanes.left, shape, top);
    scatter_columns(part.top_right.data(), cells.lanes, cells.lanes.right, shape, top);
    scatter_columns(part.bottom_left.data(), cells.lanes, cells.lanes.left, shape, bottom);
    scatter_columns(part.bottom_right.data(), cells.lanes, cells.lanes.right, shape, bottom);
  });
}

Tensor upsample_ohem_loss_backward(const Tensor& grad, const Tensor& logits, int64_t padded_height,
                                   int64_t padded_width, const Tensor& target, const Tensor& normaliser,
                                   double ohem) {
  const int64_t count = kept_pixels(logits, target, ohem);
  const int64_t height = target.size(0), width = target.size(1);
  const Shape shape = check_upsample(kOhemLoss, logits, padded_height, padded_width, height, width);
  const Axis rows(shape.height, padded_height, height, height);
  const Axis columns(shape.width, padded_width, width, kMostPhases);
  check_ohem_backward(grad, logits, target, normaliser);
  const Tensor classes = torch::stable::contiguous(target), normalisers = torch::stable::contiguous(normaliser);
  Tensor gradient = torch::stable::new_zeros(logits, {shape.classes, shape.height, shape.width}, wide_type(logits));
  const std::vector<const Span*> all = all_of(columns);
  dispatch_floating(logits, kOhemLoss, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const W share = *data<W>(grad) / static_cast<W>(count);
    // Neighbouring bands share a source row. First all even ones, then all odd ones: no two threads meet, and the sum in
    // each element is made in one order.
    const auto bands = static_cast<int64_t>(rows.spans.size());
    for (int64_t parity = 0; parity < 2; ++parity) {
      torch::stable::parallel_for(0, (bands + 1 - parity) / 2, 1, [&](int64_t begin, int64_t end) {
        Cells<W> cells(shape.classes, columns.longest), part(shape.classes, 0);
        for (int64_t i = begin; i < end; ++i) {
          backward_band<W, T>(data<T>(logits), shape, rows, columns, rows.spans[2 * i + parity], all,
                              data<int64_t>(classes), data<W>(normalisers), share, cells, part,
                              mutable_data<W>(gradient));
        }
      });
    }
  });
  return gradient;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("upsample_ohem_loss", TORCH_BOX(&seamseg::upsample_ohem_loss));
  m.impl("upsample_ohem_loss_backward", TORCH_BOX(&seamseg::upsample_ohem_loss_backward));
}
