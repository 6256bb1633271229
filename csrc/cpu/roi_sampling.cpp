// ROI sampling, forward: one point a bin. Channels last is a sum of four vectors; planes go through a small tile.
#include <algorithm>
#include <type_traits>

#include "../roi_arguments.h"
#include "common.h"
#include "roi_taps.h"

namespace seamseg {
namespace {

constexpr int64_t kBlock = 16;    // channels of planes in one go: a cache line of floats
constexpr int64_t kPoints = 256;  // samples in one go: with a block of channels they stay in the nearest cache

// What one sample reads: four pixels (one, if nearest) and their weights.
template <class W>
struct Sample {
  int64_t offset[4];
  W weight[4];
};

template <class T, class W>
SEAMSEG_INLINE void blend(T* SEAMSEG_RESTRICT out, const T* x, const Sample<W>& s, int64_t channels) {
  const T *a = x + s.offset[0], *b = x + s.offset[1], *c = x + s.offset[2], *d = x + s.offset[3];
  const W wa = s.weight[0], wb = s.weight[1], wc = s.weight[2], wd = s.weight[3];
  for (int64_t i = 0; i < channels; ++i) {
    store(out + i, wa * load(a + i) + wb * load(b + i) + wc * load(c + i) + wd * load(d + i));
  }
}

// `out` and `x` are at the first of `here` channels of a box's samples and of its image.
template <class T, class W>
SEAMSEG_CLONES void sample_vectors(T* out, const T* x, const std::vector<Sample<W>>& samples, int64_t here,
                                   int64_t channels) {
  for (const Sample<W>& s : samples) {
    blend(out, x, s, here);
    out += channels;
  }
}

template <class T, class W>
SEAMSEG_CLONES void sample_planes(T* SEAMSEG_RESTRICT out, const T* x, const std::vector<Sample<W>>& samples,
                                  int64_t here, int64_t channels, int64_t stride, T* SEAMSEG_RESTRICT tile) {
  const auto points = static_cast<int64_t>(samples.size());
  // four planes at once share the offsets and weights of a sample; more would meet in the same sets of the cache
  int64_t c = 0;
  for (; c + 4 <= here; c += 4) {
    for (int64_t i = 0; i < points; ++i) {
      const Sample<W> s = samples[i];
      for (int64_t k = c; k < c + 4; ++k) blend(tile + i * kBlock + k, x + k * stride, s, 1);
    }
  }
  for (; c < here; ++c) {
    for (int64_t i = 0; i < points; ++i) blend(tile + i * kBlock + c, x + c * stride, samples[i], 1);
  }
  for (int64_t i = 0; i < points; ++i) {
    for (c = 0; c < here; ++c) out[i * channels + c] = tile[i * kBlock + c];
  }
}

// Nearest neighbours are copied; integers have no other way.
template <class T, class W>
void copy_pixels(T* out, const T* x, const std::vector<Sample<W>>& samples, int64_t here, int64_t channels,
                 int64_t stride) {
  for (const Sample<W>& s : samples) {
    const T* pixel = x + s.offset[0];
    for (int64_t c = 0; c < here; ++c) out[c] = s.weight[0] != 0 ? pixel[c * stride] : T(0);
    out += channels;
  }
}

// Samples `begin` to `end` of a box, as its rows would be written one after the other.
template <class W, class B>
void fill_samples(const RoiCall& call, const RoiTaps<B>& taps, const RoiMap& map, int64_t box, int64_t begin,
                  int64_t end, std::vector<Sample<W>>& samples) {
  const int64_t width = call.grid.width;
  samples.clear();
  for (int64_t i = begin; i < end; ++i) {
    const RoiTap<B>& y = taps.rows[box * call.grid.height + i / width];
    const RoiTap<B>& x = taps.columns[box * width + i % width];
    const int64_t left = x.first * map.stride_column, right = x.second * map.stride_column;
    const int64_t top = y.first * map.stride_row, bottom = y.second * map.stride_row;
    samples.push_back({{top + left, top + right, bottom + left, bottom + right},
                       {static_cast<W>(y.weight_first * x.weight_first),
                        static_cast<W>(y.weight_first * x.weight_second),
                        static_cast<W>(y.weight_second * x.weight_first),
                        static_cast<W>(y.weight_second * x.weight_second)}});
  }
}

inline bool is_vectors(const RoiCall& call, const RoiMap& map) {
  return map.stride_channel == 1 || call.channels == 1;
}

template <class T, class B>
void sample_all(const RoiCall& call, const std::vector<Tensor>& levels, const Tensor& y) {
  using W = std::conditional_t<std::is_integral_v<T>, float, wide_t<T>>;
  const RoiTaps<B> taps(call);
  std::vector<const T*> maps;
  bool vectors = true;
  for (size_t level = 0; level < levels.size(); ++level) {
    maps.push_back(data<T>(levels[level]));
    vectors = vectors && is_vectors(call, call.maps[level]);
  }
  T* out = mutable_data<T>(y);
  // Planes go a block of channels after the other through all boxes: a few planes fit the caches, all of them do not.
  const int64_t block = vectors ? call.channels : kBlock, blocks = (call.channels + block - 1) / block;
  const int64_t points = call.grid.height * call.grid.width, chunks = (points + kPoints - 1) / kPoints;
  const int64_t grain = std::max<int64_t>(1, 16384 / (std::min(points, kPoints) * block));
  // A thread writes channels of samples of its own.
  torch::stable::parallel_for(0, blocks * call.count * chunks, grain, [&](int64_t first, int64_t last) {
    std::vector<Sample<W>> samples;
    std::vector<T> tile(vectors ? 0 : kPoints * kBlock);
    for (int64_t job = first; job < last; ++job) {
      const int64_t channel = job / (call.count * chunks) * block, here = std::min(block, call.channels - channel);
      const int64_t box = job / chunks % call.count, begin = job % chunks * kPoints;
      const int64_t level = taps.level(box);
      const RoiMap& map = call.maps[level];
      fill_samples(call, taps, map, box, begin, std::min(points, begin + kPoints), samples);
      const T* x = maps[level] + taps.index[box] * map.stride_image + channel * map.stride_channel;
      T* target = out + (box * points + begin) * call.channels + channel;
      if (call.grid.nearest) {
        copy_pixels(target, x, samples, here, call.channels, map.stride_channel);
      } else if constexpr (!std::is_integral_v<T>) {
        if (is_vectors(call, map)) {
          sample_vectors(target, x, samples, here, call.channels);
        } else {
          sample_planes(target, x, samples, here, call.channels, map.stride_channel, tile.data());
        }
      }
    }
  });
}

Tensor roi_sampling(const std::vector<Tensor>& levels, const Tensor& boxes, const Tensor& index,
                    const std::optional<Tensor>& level, const std::vector<int64_t>& padded_size, int64_t height,
                    int64_t width, bool nearest, bool zero) {
  const RoiCall call = roi_forward_call(levels, boxes, index, level, padded_size, height, width, nearest, zero);
  const Tensor& x = levels[0];
  Tensor y = empty_like_of(x, {call.count, call.channels, height, width}, x.scalar_type(), true);
  check_roi_places(call);
  if (y.numel() == 0) return y;
  const auto run = [&](auto zero_of_t) {
    using T = decltype(zero_of_t);
    if (call.boxes.scalar_type() == ScalarType::Double) {
      sample_all<T, double>(call, levels, y);
    } else {
      sample_all<T, float>(call, levels, y);
    }
  };
  if (is_floating(x)) {
    dispatch_floating(x, "roi_sampling", run);
  } else {
    STD_TORCH_CHECK(nearest, "roi_sampling: bilinear needs floating levels; use nearest");
    dispatch_integer(x, "roi_sampling", run);
  }
  return y;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("roi_sampling", TORCH_BOX(&seamseg::roi_sampling));
}
