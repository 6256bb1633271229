// Maps of segment ids as runs, and never as pixels: from the compressed rows of an RGB PNG to the runs of its colours,
// and from the runs of two maps to how often each pair of ids occurs. A run ends with its row.
#include "inflate.h"
#include "pair_counts.h"
#include "png_rows.h"

namespace seamseg {
namespace {

// changed[i] is set where byte i is not that of the pixel to the left
SEAMSEG_CLONES void mark_pixels(const uint8_t* SEAMSEG_RESTRICT p, int64_t count, uint8_t* SEAMSEG_RESTRICT changed) {
  for (int64_t i = 0; i < count; ++i) changed[i] = static_cast<uint8_t>(p[i] != p[i - kPixel]);
}

class Runs {
 public:
  // before the first row, both rows are of zeros
  explicit Runs(int64_t width)
      : width_(width), above_(kPixel * (width + 1)), row_(kPixel * (width + 1)), changed_(kPixel * width) {}

  void add_row(const uint8_t* filtered) {
    if (undo_filter(filtered[0], filtered + 1, above_.data() + kPixel, row_.data() + kPixel, kPixel * width_) &&
        !starts.empty()) {
      again();
    } else {
      read_row();
      above_.swap(row_);
    }
    first_ += static_cast<int32_t>(width_);
  }

  std::vector<int32_t> starts, ids;

 private:
  void again() {
    const size_t count = starts.size() - begin_;
    const size_t size = starts.size();
    starts.resize(size + count);
    ids.resize(size + count);
    for (size_t i = size; i < size + count; ++i) {
      starts[i] = starts[i - count] + static_cast<int32_t>(width_);
      ids[i] = ids[i - count];
    }
    begin_ = size;
  }

  void read_row() {
    begin_ = starts.size();
    const uint8_t* p = row_.data() + kPixel;
    const int64_t count = kPixel * width_;
    mark_pixels(p, count, changed_.data());
    add(p, 0);
    int64_t last = 0;
    for (int64_t i = next_nonzero(changed_.data(), 0, count); i < count;) {
      if (i / kPixel != last) {
        last = i / kPixel;
        add(p, last);
      }
      i = next_nonzero(changed_.data(), i + 1, count);
    }
  }

  void add(const uint8_t* p, int64_t x) {
    starts.push_back(first_ + static_cast<int32_t>(x));
    ids.push_back(p[kPixel * x] | p[kPixel * x + 1] << 8 | p[kPixel * x + 2] << 16);
  }

  int64_t width_;
  int32_t first_ = 0;
  size_t begin_ = 0;
  std::vector<uint8_t> above_, row_, changed_;
};

Tensor as_tensor(const std::vector<int32_t>& values, const Tensor& like) {
  Tensor out = torch::stable::new_empty(like, {static_cast<int64_t>(values.size())}, ScalarType::Int);
  if (!values.empty()) std::memcpy(mutable_data<int32_t>(out), values.data(), values.size() * sizeof(int32_t));
  return out;
}

std::tuple<Tensor, Tensor> decode_id_runs(const Tensor& stream, int64_t height, int64_t width) {
  STD_TORCH_CHECK(stream.scalar_type() == ScalarType::Byte && stream.dim() == 1, "decode_id_runs: stream must be bytes");
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  STD_TORCH_CHECK(height > 0 && width > 0 && height <= kMost / width, "decode_id_runs: 1 to 2^31-1 pixels");
  const Tensor bytes = torch::stable::contiguous(stream);
  // no byte of a stream can stand for more than 1032: nothing is set aside for a size that is a lie
  STD_TORCH_CHECK(height * (kPixel * width + 1) <= 1032 * bytes.numel(), "the compressed data are too short for the size");
  Runs runs(width);
  const auto take_row = [&](const uint8_t* row) { runs.add_row(row); };
  Inflater inflater(data<uint8_t>(bytes), bytes.numel(), height, kPixel * width + 1, take_row);
  inflater.run();
  return {as_tensor(runs.starts, stream), as_tensor(runs.ids, stream)};
}

struct Map {
  const int32_t* starts;
  const int32_t* ids;
  int64_t size, total;

  Map(const Tensor& s, const Tensor& i, int64_t n)
      : starts(data<int32_t>(s)), ids(data<int32_t>(i)), size(s.numel()), total(n) {
    STD_TORCH_CHECK(s.scalar_type() == ScalarType::Int && i.scalar_type() == ScalarType::Int && s.numel() == i.numel(),
                    "joint_histogram_of_runs: starts and ids must be int32 and as many");
  }
  int64_t end(int64_t run) const { return run + 1 < size ? starts[run + 1] : total; }
};

std::tuple<Tensor, Tensor> joint_histogram_of_runs(const Tensor& a_starts, const Tensor& a_ids, const Tensor& b_starts,
                                                   const Tensor& b_ids, int64_t total) {
  const Tensor tensors[4] = {torch::stable::contiguous(a_starts), torch::stable::contiguous(a_ids),
                             torch::stable::contiguous(b_starts), torch::stable::contiguous(b_ids)};
  const Map a(tensors[0], tensors[1], total), b(tensors[2], tensors[3], total);
  std::vector<Entry> entries;
  if (total > 0) {
    STD_TORCH_CHECK(a.size > 0 && b.size > 0, "joint_histogram_of_runs: a map without runs");
    PairCounts counts;
    int64_t i = 0, j = 0;
    for (int64_t at = 0; at < total;) {
      const int64_t a_end = a.end(i), b_end = b.end(j), stop = std::min(a_end, b_end);
      STD_TORCH_CHECK(stop > at && stop <= total, "joint_histogram_of_runs: runs must rise");
      counts.add(a.ids[i], b.ids[j], stop - at);
      at = stop;
      i += a_end == stop ? 1 : 0;
      j += b_end == stop ? 1 : 0;
    }
    counts.append_to(entries);
  }
  return sorted_pairs(std::move(entries), tensors[1]);
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("decode_id_runs", TORCH_BOX(&seamseg::decode_id_runs));
  m.impl("joint_histogram_of_runs", TORCH_BOX(&seamseg::joint_histogram_of_runs));
}
