// ROI sampling, backward: each row of a map gathers what the rows of samples that read it give back.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "../roi_arguments.h"
#include "common.h"
#include "roi_taps.h"

namespace seamseg {
namespace {

// A row of samples that reads a row of a map.
template <class B>
struct Reader {
  int64_t box, bin;
  B weight;
};

// The readers of each row of all maps, rows counted level by level and image by image; those of row r are
// readers[starts[r]] to readers[starts[r + 1]], boxes rising, so that sums are always made in the same order.
template <class B>
struct Readers {
  std::vector<int64_t> first_row;  // of each level, and the end
  std::vector<int64_t> starts;
  std::vector<Reader<B>> readers;

  Readers(const RoiCall& call, const RoiTaps<B>& taps) : first_row(1, 0) {
    for (const RoiMap& map : call.maps) first_row.push_back(first_row.back() + map.images * map.height);
    starts.assign(first_row.back() + 1, 0);
    visit(call, taps, [&](int64_t row, const Reader<B>&) { ++starts[row + 1]; });
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    readers.resize(starts.back());
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    visit(call, taps, [&](int64_t row, const Reader<B>& reader) { readers[next[row]++] = reader; });
  }

 private:
  template <class F>
  void visit(const RoiCall& call, const RoiTaps<B>& taps, F&& f) const {
    for (int64_t box = 0; box < call.count; ++box) {
      const int64_t level = taps.level(box);
      const int64_t base = first_row[level] + taps.index[box] * call.maps[level].height;
      for (int64_t bin = 0; bin < call.grid.height; ++bin) {
        const RoiTap<B>& tap = taps.rows[box * call.grid.height + bin];
        f(base + tap.first, {box, bin, tap.weight_first});
        const bool one = tap.first == tap.second && tap.weight_second == 0;  // as nearest always is
        if (!one) f(base + tap.second, {box, bin, tap.weight_second});
      }
    }
  }
};

template <class T, class W>
SEAMSEG_INLINE void add_one(W* SEAMSEG_RESTRICT p, const T* SEAMSEG_RESTRICT g, W weight, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) p[c] += weight * load(g + c);
}

template <class T, class W>
SEAMSEG_INLINE void add_two(W* SEAMSEG_RESTRICT p, W* SEAMSEG_RESTRICT q, const T* SEAMSEG_RESTRICT g, W first,
                            W second, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) {
    const W value = load(g + c);
    p[c] += first * value;
    q[c] += second * value;
  }
}

template <class T, class W, class B>
SEAMSEG_CLONES void add_reader(W* row, const T* dy, const RoiTap<B>* taps, B weight, int64_t bins, int64_t channels) {
  for (int64_t j = 0; j < bins; ++j) {
    const RoiTap<B>& tap = taps[j];
    const W first = static_cast<W>(weight * tap.weight_first), second = static_cast<W>(weight * tap.weight_second);
    W* p = row + tap.first * channels;
    if (tap.first == tap.second) {
      add_one(p, dy + j * channels, first + second, channels);
    } else {
      add_two(p, row + tap.second * channels, dy + j * channels, first, second, channels);
    }
  }
}

template <class T, class W>
SEAMSEG_CLONES void store_vector(T* SEAMSEG_RESTRICT out, const W* SEAMSEG_RESTRICT row, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(out + i, row[i]);
}

// A row, channels last, to a row of each plane; a few channels at once use all of each cache line that is read.
template <class T, class W>
SEAMSEG_CLONES void store_planes(T* SEAMSEG_RESTRICT out, int64_t stride_channel, const W* SEAMSEG_RESTRICT row,
                                 int64_t width, int64_t channels) {
  constexpr int64_t kBlock = 16;
  for (int64_t c0 = 0; c0 < channels; c0 += kBlock) {
    const int64_t c1 = std::min(channels, c0 + kBlock);
    for (int64_t x0 = 0; x0 < width; x0 += kBlock) {
      const int64_t x1 = std::min(width, x0 + kBlock);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t x = x0; x < x1; ++x) store(out + c * stride_channel + x, row[x * channels + c]);
      }
    }
  }
}

template <class T, class B>
void gather_row(const RoiCall& call, const RoiTaps<B>& taps, const Readers<B>& readers, int64_t row, size_t level,
                const T* dy, T* dx) {
  using W = wide_t<T>;
  thread_local std::vector<W> scratch;
  const RoiMap& map = call.maps[level];
  const int64_t channels = call.channels, count = map.width * channels, bins = call.grid.width;
  const int64_t number = row - readers.first_row[level], image = number / map.height, y = number % map.height;
  T* out = dx + image * map.stride_image + y * map.stride_row;
  const bool vectors = map.stride_channel == 1 || channels == 1;
  const int64_t begin = readers.starts[row], end = readers.starts[row + 1];
  if (begin == end) {
    for (int64_t i = 0; i < (vectors ? 1 : channels); ++i) {
      std::memset(out + i * map.stride_channel, 0, (vectors ? count : map.width) * sizeof(T));
    }
    return;
  }
  W* sums = nullptr;
  if constexpr (std::is_same_v<T, W>) {
    if (vectors) sums = out;
  }
  if (sums == nullptr) {
    scratch.resize(count);
    sums = scratch.data();
  }
  std::memset(sums, 0, count * sizeof(W));
  for (int64_t i = begin; i < end; ++i) {
    const Reader<B>& reader = readers.readers[i];
    const T* line = dy + (reader.box * call.grid.height + reader.bin) * bins * channels;
    add_reader(sums, line, taps.columns.data() + reader.box * bins, reader.weight, bins, channels);
  }
  if (!vectors) {
    store_planes(out, map.stride_channel, sums, map.width, channels);
  } else if (static_cast<void*>(sums) != static_cast<void*>(out)) {
    store_vector(out, sums, count);
  }
}

// Where to cut the rows so that every part has about as much to do: what is written, and what is added.
template <class B>
std::vector<int64_t> even_parts(const RoiCall& call, const Readers<B>& readers) {
  std::vector<int64_t> work(1, 0);
  for (size_t level = 0; level < call.maps.size(); ++level) {
    for (int64_t row = readers.first_row[level]; row < readers.first_row[level + 1]; ++row) {
      const int64_t added = 3 * (readers.starts[row + 1] - readers.starts[row]) * call.grid.width;
      work.push_back(work.back() + (call.maps[level].width + added) * call.channels);
    }
  }
  const int64_t threads = torch::stable::get_num_threads();
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, work.back() >> 15));
  std::vector<int64_t> cuts;
  for (int64_t part = 0; part <= parts; ++part) {
    const auto cut = std::lower_bound(work.begin(), work.end(), work.back() / parts * part);
    cuts.push_back(part == parts ? readers.first_row.back() : cut - work.begin());
  }
  return cuts;
}

template <class T, class B>
void gather_all(const RoiCall& call, const Tensor& dy, const std::vector<Tensor>& gradients) {
  const RoiTaps<B> taps(call);
  const Readers<B> readers(call, taps);
  const std::vector<int64_t> cuts = even_parts(call, readers);
  const auto parts = static_cast<int64_t>(cuts.size()) - 1;
  std::vector<T*> out;
  for (const Tensor& dx : gradients) out.push_back(mutable_data<T>(dx));
  const T* source = data<T>(dy);
  // A thread writes rows of the maps of its own; where the cuts lie changes no sum.
  torch::stable::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    size_t level = 0;
    for (int64_t row = cuts[first]; row < cuts[last]; ++row) {
      while (row >= readers.first_row[level + 1]) ++level;
      gather_row(call, taps, readers, row, level, source, out[level]);
    }
  });
}

std::vector<Tensor> roi_sampling_backward(const Tensor& dy, const std::vector<int64_t>& shapes,
                                          const std::vector<bool>& channels_last, const Tensor& boxes,
                                          const Tensor& index, const std::optional<Tensor>& level,
                                          const std::vector<int64_t>& padded_size, bool nearest, bool zero,
                                          bool /*deterministic: it always is*/) {
  std::vector<Tensor> gradients;
  const RoiCall call =
      roi_backward_call(dy, shapes, channels_last, boxes, index, level, padded_size, nearest, zero, gradients);
  check_roi_places(call);
  if (call.channels == 0) return gradients;
  const Tensor vectors = torch::stable::contiguous(dy, MemoryFormat::ChannelsLast);
  dispatch_floating(vectors, "roi_sampling_backward", [&](auto zero_of_t) {
    using T = decltype(zero_of_t);
    if (call.boxes.scalar_type() == ScalarType::Double) {
      gather_all<T, double>(call, vectors, gradients);
    } else {
      gather_all<T, float>(call, vectors, gradients);
    }
  });
  return gradients;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("roi_sampling_backward", TORCH_BOX(&seamseg::roi_sampling_backward));
}
