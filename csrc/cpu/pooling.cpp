// Average pooling of stride 1 with its replicate padding, and the adjoint: each line of the map is read from memory
// once and written once. A line is a row of pixels with the channels (lanes) that are worked on together.
#include <algorithm>
#include <memory>
#include <type_traits>

#include "common.h"

namespace seamseg {
namespace {

// Channels last: a cache line of channels at a time.
template <class T>
constexpr int64_t kLanes = 64 / sizeof(T);
// Lines that are summed one after the other before they join the rest; keeps the rounding of long windows small.
constexpr int64_t kRun = 8;

// Lines of one dense piece of a map: `lanes` channels of every pixel, pixels `stride` apart.
struct Lines {
  int64_t pixels, lanes, stride;
  int64_t length() const { return pixels * lanes; }
  int64_t row(int64_t y) const { return y * pixels * stride; }
};

template <class T, class W>
SEAMSEG_CLONES void load_line(const T* SEAMSEG_RESTRICT from, const Lines& lines, W* SEAMSEG_RESTRICT to) {
  const int64_t pixels = lines.pixels, lanes = lines.lanes, stride = lines.stride;
  if (stride == lanes) {
    for (int64_t i = 0; i < pixels * lanes; ++i) to[i] = load(from + i);
  } else if (lanes == kLanes<T>) {
    for (int64_t x = 0; x < pixels; ++x) {
      for (int64_t c = 0; c < kLanes<T>; ++c) to[x * kLanes<T> + c] = load(from + x * stride + c);
    }
  } else {
    for (int64_t x = 0; x < pixels; ++x) {
      for (int64_t c = 0; c < lanes; ++c) to[x * lanes + c] = load(from + x * stride + c);
    }
  }
}

template <class T, class W>
SEAMSEG_CLONES void store_line(const W* SEAMSEG_RESTRICT from, const Lines& lines, T* SEAMSEG_RESTRICT to) {
  const int64_t pixels = lines.pixels, lanes = lines.lanes, stride = lines.stride;
  if (stride == lanes) {
    for (int64_t i = 0; i < pixels * lanes; ++i) store(to + i, from[i]);
  } else if (lanes == kLanes<T>) {
    for (int64_t x = 0; x < pixels; ++x) {
      for (int64_t c = 0; c < kLanes<T>; ++c) store(to + x * stride + c, from[x * kLanes<T> + c]);
    }
  } else {
    for (int64_t x = 0; x < pixels; ++x) {
      for (int64_t c = 0; c < lanes; ++c) store(to + x * stride + c, from[x * lanes + c]);
    }
  }
}

template <class W>
SEAMSEG_CLONES void add(const W* SEAMSEG_RESTRICT a, const W* SEAMSEG_RESTRICT b, int64_t n, W* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

template <class W>
SEAMSEG_CLONES void accumulate(const W* SEAMSEG_RESTRICT line, int64_t n, W* SEAMSEG_RESTRICT sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += line[i];
}

// run += line; out = sum + run
template <class W>
SEAMSEG_CLONES void extend(const W* SEAMSEG_RESTRICT line, const W* SEAMSEG_RESTRICT sum, int64_t n,
                           W* SEAMSEG_RESTRICT run, W* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) {
    const W grown = run[i] + line[i];
    run[i] = grown;
    out[i] = sum[i] + grown;
  }
}

// run += line; out = rest + (sum + run)
template <class W>
SEAMSEG_CLONES void extend(const W* SEAMSEG_RESTRICT line, const W* SEAMSEG_RESTRICT sum,
                           const W* SEAMSEG_RESTRICT rest, int64_t n, W* SEAMSEG_RESTRICT run,
                           W* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < n; ++i) {
    const W grown = run[i] + line[i];
    run[i] = grown;
    out[i] = rest[i] + (sum[i] + grown);
  }
}

// Columns 0 .. n-1 of the result, with the first and the last repeated to both sides.
template <class W>
SEAMSEG_CLONES void scale_and_pad(const W* SEAMSEG_RESTRICT from, int64_t n, W factor, int64_t before, int64_t after,
                                  W* SEAMSEG_RESTRICT to, int64_t lanes) {
  W* inner = to + before * lanes;
  for (int64_t i = 0; i < n * lanes; ++i) inner[i] = from[i] * factor;
  for (int64_t i = 0; i < before * lanes; ++i) to[i] = inner[i % lanes];
  for (int64_t i = n * lanes; i < (n + after) * lanes; ++i) inner[i] = inner[i - lanes];
}

// Uninitialised memory of one thread, handed out front to back.
template <class W>
class Workspace {
 public:
  explicit Workspace(int64_t size) : memory_(new W[size]), next_(memory_.get()) {}
  W* take(int64_t size) {
    W* part = next_;
    next_ += size;
    return part;
  }

 private:
  std::unique_ptr<W[]> memory_;
  W* next_;
};

// Sums over k pixels beside each other along a line: sums over 2, 4, 8, ... pixels are built from each other, and k's
// binary digits select the summands.
template <class W>
class Across {
 public:
  Across(int64_t pixels, int64_t k, int64_t lanes, Workspace<W>& workspace) : pixels_(pixels), k_(k), lanes_(lanes) {
    for (W*& line : lines_) line = workspace.take(pixels * lanes);
  }
  static int64_t size(int64_t pixels, int64_t lanes) { return 3 * pixels * lanes; }

  // The sums of `line`: `pixels - k + 1` of them, good until the next call.
  const W* operator()(const W* line) {
    W* total = lines_[2];
    bool begun = false;
    int64_t have = pixels_, done = 0;
    for (int64_t power = 1;; power *= 2) {
      if (k_ & power) {
        const W* part = line + done * lanes_;
        done += power;
        if (!begun && done == k_) return part;
        const int64_t n = (pixels_ - k_ + 1) * lanes_;
        if (begun) {
          accumulate(part, n, total);
        } else {
          std::memcpy(total, part, n * sizeof(W));
        }
        begun = true;
        if (done == k_) return total;
      }
      have -= power;
      W* next = line == lines_[0] ? lines_[1] : lines_[0];
      add(line, line + power * lanes_, have * lanes_, next);
      line = next;
    }
  }

 private:
  int64_t pixels_, k_, lanes_;
  W* lines_[3];
};

// Sums over k lines below each other. Lines are taken in blocks of k: a window is the end of one block and the beginning
// of the next, so that no window holds anything but sums of its own lines (a running sum would drift).
template <class W>
class Down {
 public:
  Down(int64_t k, int64_t windows, int64_t length, Workspace<W>& workspace) : k_(k), length_(length) {
    ends_ = workspace.take(std::min(k, windows) * length);
    sum_ = workspace.take(length);
    run_ = workspace.take(length);
    out_ = workspace.take(length);
  }
  static int64_t size(int64_t k, int64_t windows, int64_t length) { return (std::min(k, windows) + 3) * length; }

  // Windows begin .. end (begin a multiple of k): `line(i)` is line i or null for zeros, `emit(i, sums)` takes window i.
  template <class Line, class Emit>
  void operator()(int64_t begin, int64_t end, Line&& line, Emit&& emit) {
    for (int64_t first = begin; first < end; first += k_) {
      const int64_t count = std::min(k_, end - first);
      restart();
      for (int64_t o = k_ - 1; o >= 0; --o) {
        W* out = o < count ? ends_ + o * length_ : out_;
        if (const W* next = line(first + o)) {
          extend(next, sum_, length_, run_, out);
        } else {
          add(sum_, run_, length_, out);
        }
        grown();
      }
      emit(first, ends_);
      restart();
      for (int64_t o = 1; o < count; ++o) {
        const W* end_of_block = ends_ + o * length_;
        if (const W* next = line(first + k_ + o - 1)) {
          extend(next, sum_, end_of_block, length_, run_, out_);
          grown();
          emit(first + o, out_);
        } else {
          grown();
          add(sum_, run_, length_, out_);
          accumulate(end_of_block, length_, out_);
          emit(first + o, out_);
        }
      }
    }
  }

 private:
  void restart() {
    std::fill_n(sum_, length_, W{0});
    std::fill_n(run_, length_, W{0});
    lines_ = 0;
  }
  void grown() {
    if (++lines_ % kRun != 0) return;
    accumulate(run_, length_, sum_);
    std::fill_n(run_, length_, W{0});
  }

  int64_t k_, length_, lines_ = 0;
  W *ends_, *sum_, *run_, *out_;
};

// The geometry of one call: a window of k pixels along an axis of `size`, `inner` places for it.
struct Axis {
  int64_t size, k, inner, before, after;
  Axis(int64_t size, int64_t window) : size(size), k(std::min(window, size)) {
    inner = size - k + 1;
    before = (k - 1) / 2;
    after = k - 1 - before;
  }
};

// Rows of the result from window `begin` to `end`.
template <class T>
void pool(const T* x, T* y, const Lines& lines, const Axis& down, const Axis& across, int64_t begin, int64_t end) {
  using W = wide_t<T>;
  const int64_t length = lines.length(), lanes = lines.lanes;
  Workspace<W> workspace(Down<W>::size(down.k, end - begin, length) + Across<W>::size(across.size, lanes) + 2 * length);
  Down<W> sum_down(down.k, end - begin, length, workspace);
  Across<W> sum_across(across.size, across.k, lanes, workspace);
  W *loaded = workspace.take(length), *out = workspace.take(length);
  const W factor = W{1} / (static_cast<W>(down.k) * static_cast<W>(across.k));
  const auto line = [&](int64_t row) -> const W* {
    if constexpr (std::is_same_v<T, W>) {
      if (lines.stride == lanes) return x + lines.row(row);
    }
    load_line(x + lines.row(row), lines, loaded);
    return loaded;
  };
  sum_down(begin, end, line, [&](int64_t row, const W* sums) {
    scale_and_pad(sum_across(sums), across.inner, factor, across.before, across.after, out, lanes);
    const int64_t first = row == 0 ? 0 : row + down.before;
    const int64_t last = row == down.inner - 1 ? down.size : row + down.before + 1;
    for (int64_t i = first; i < last; ++i) store_line(out, lines, y + lines.row(i));
  });
}

// The adjoint: what fell on the padding goes back to the edge, and every value to the pixels of its window, whose sums
// are those over a map with zeros around it.
template <class T>
void spread(const T* dy, T* dx, const Lines& lines, const Axis& down, const Axis& across, int64_t begin, int64_t end) {
  using W = wide_t<T>;
  const int64_t length = lines.length(), lanes = lines.lanes, inner = across.inner * lanes;
  const int64_t around = across.k - 1, padded = across.inner + 2 * around;
  Workspace<W> workspace(Down<W>::size(down.k, end - begin, inner) + Across<W>::size(padded, lanes) + 3 * length +
               padded * lanes);
  Down<W> sum_down(down.k, end - begin, inner, workspace);
  Across<W> sum_across(padded, across.k, lanes, workspace);
  W *loaded = workspace.take(length), *more = workspace.take(length), *out = workspace.take(length);
  W* wide = workspace.take(padded * lanes);
  std::fill_n(wide, padded * lanes, W{0});
  const W factor = W{1} / (static_cast<W>(down.k) * static_cast<W>(across.k));
  const auto line = [&](int64_t row) -> const W* {
    row -= down.k - 1;
    if (row < 0 || row >= down.inner) return nullptr;
    const int64_t first = row == 0 ? 0 : row + down.before;
    const int64_t last = row == down.inner - 1 ? down.size : row + down.before + 1;
    load_line(dy + lines.row(first), lines, loaded);
    for (int64_t i = first + 1; i < last; ++i) {
      load_line(dy + lines.row(i), lines, more);
      accumulate(more, length, loaded);
    }
    W *left = loaded + across.before * lanes, *right = left + inner - lanes;
    for (int64_t x = 0; x < across.before; ++x) accumulate(loaded + x * lanes, lanes, left);
    for (int64_t x = 1; x <= across.after; ++x) accumulate(right + x * lanes, lanes, right);
    return left;
  };
  sum_down(begin, end, line, [&](int64_t row, const W* sums) {
    std::memcpy(wide + around * lanes, sums, inner * sizeof(W));
    scale_and_pad(sum_across(wide), across.size, factor, 0, 0, out, lanes);
    store_line(out, lines, dx + lines.row(row));
  });
}

// Run `work(x, y, lines, down, across, begin, end)` for every plane or group of channels, `windows` rows of it.
template <class T, class Work>
void each_piece(const Tensor& x, const Tensor& y, bool last, const Axis& down, const Axis& across, int64_t windows,
                Work&& work) {
  const int64_t channels = x.size(1), plane = x.size(2) * x.size(3);
  const int64_t lanes = last ? std::min(channels, kLanes<T>) : 1;
  const int64_t groups = lanes > 0 ? (channels + lanes - 1) / lanes : 0, pieces = x.size(0) * groups;
  if (pieces == 0) return;
  // Few pieces are cut into bands of whole blocks of k rows, which does not change what is added to what; every task
  // writes rows and channels of its own.
  const int64_t blocks = (windows + down.k - 1) / down.k;
  const int64_t wanted = (4 * static_cast<int64_t>(torch::stable::get_num_threads()) + pieces - 1) / pieces;
  const int64_t bands = torch::stable::get_num_threads() > 1 ? std::min(blocks, wanted) : 1;
  torch::stable::parallel_for(0, pieces * bands, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t piece = task / bands, band = task % bands, image = piece / groups, group = piece % groups;
      const int64_t offset = image * channels * plane + (last ? group * lanes : group * plane);
      const Lines lines{x.size(3), std::min(lanes, channels - group * lanes), last ? channels : 1};
      work(data<T>(x) + offset, mutable_data<T>(y) + offset, lines, down, across, blocks * band / bands * down.k,
           std::min(windows, blocks * (band + 1) / bands * down.k));
    }
  });
}

Tensor run(const char* op, const Tensor& source, int64_t height, int64_t width, bool adjoint) {
  STD_TORCH_CHECK(source.dim() == 4 && source.size(2) > 0 && source.size(3) > 0, op,
                  ": expected N x C x H x W with pixels");
  STD_TORCH_CHECK(height > 0 && width > 0, op, ": the window must be positive");
  const bool last = !source.is_contiguous();
  const Tensor x = last ? torch::stable::contiguous(source, MemoryFormat::ChannelsLast) : source;
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  Tensor y = empty_like_of(x, {n, c, h, w}, x.scalar_type(), last);
  const Axis down(h, height), across(w, width);
  dispatch_floating(x, op, [&](auto zero) {
    using T = decltype(zero);
    if (adjoint) {
      each_piece<T>(x, y, last, down, across, down.size, [](auto... arguments) { spread<T>(arguments...); });
    } else {
      each_piece<T>(x, y, last, down, across, down.inner, [](auto... arguments) { pool<T>(arguments...); });
    }
  });
  return y;
}

Tensor box_filter_pool(const Tensor& x, int64_t height, int64_t width) {
  return run("box_filter_pool", x, height, width, false);
}

Tensor box_filter_pool_backward(const Tensor& dy, int64_t height, int64_t width) {
  return run("box_filter_pool_backward", dy, height, width, true);
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("box_filter_pool", TORCH_BOX(&seamseg::box_filter_pool));
  m.impl("box_filter_pool_backward", TORCH_BOX(&seamseg::box_filter_pool_backward));
}
