// Cross-entropy of upsampled logits over the hardest pixels: the host side.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../upsample_host.h"
#include "common.cuh"
#include "upsample_ohem_loss_kernels.cuh"

namespace seamseg {
namespace {

using namespace upsampling;

constexpr int kThreads = 256;
constexpr int64_t kGradientBlocks = 1056;  // enough for a large card

int64_t parts_of(int64_t size, int64_t part) { return part > 0 ? (size + part - 1) / part : 0; }

// How many classes of the logits of a tile of the image fit into shared memory; 0: too few to be worth it.
template <class W>
int64_t classes_of_a_tile(const Shape& shape, float down, float across) {
  const double rows = std::min<double>(shape.height, std::ceil(kTileRows * down) + 3);
  const double columns = std::min<double>(shape.width, std::ceil(kTileColumns * across) + 3);
  // a pitch is odd
  const auto fit = static_cast<int64_t>(kTileLogits<W> / (rows * columns)) - 1;
  return fit >= std::min<int64_t>(shape.classes, 8) ? std::min(fit, shape.classes) : 0;
}

// Cells along each side of a tile of logits whose pixels fit; 0: not even those of one.
template <class W>
int cells_of_a_tile(float down, float across) {
  for (int cells = kCells; cells > 0; cells /= 2) {
    const double rows = std::ceil((cells + 1) / down) + 2, columns = std::ceil((cells + 1) / across) + 2;
    if (rows <= kSide && columns <= kSide && rows * columns <= kTilePixels<W>) return cells;
  }
  return 0;
}

// Mean of the `count` largest; the normaliser of all other pixels becomes infinite.
template <class W>
void keep_hardest(const Tensor& entropy, const Tensor& normaliser, int64_t count, const Tensor& loss,
                  cudaStream_t stream) {
  const int64_t total = entropy.numel();
  const int key_bits = 8 * sizeof(W);
  const int64_t rounds = (key_bits + kDigitBits - 1) / kDigitBits;
  const Tensor tables = torch::stable::new_zeros(entropy, {rounds, kDigits}, ScalarType::Int);
  const Tensor choices = torch::stable::new_empty(entropy, {2}, ScalarType::Long);
  const Tensor part_sums = torch::stable::new_empty(entropy, {kParts}, ScalarType::Double);
  const Tensor part_ties = torch::stable::new_empty(entropy, {kParts}, ScalarType::Long);
  Choice* choice = mutable_data<Choice>(choices);
  const W* values = data<W>(entropy);
  W* marks = mutable_data<W>(normaliser);
  SEAMSEG_LAUNCH(ohem_begin, 1, 1, stream, choice, count);
  // a table a block costs as much as kDigits pixels
  const unsigned blocks = std::min(blocks_for(total, 16 * kThreads), 1024u);
  unsigned long long known = 0;
  for (int64_t round = 0, high = key_bits; round < rounds; ++round) {
    const auto low = static_cast<int>(std::max<int64_t>(0, high - kDigitBits));
    int32_t* table = mutable_data<int32_t>(tables) + round * kDigits;
    SEAMSEG_LAUNCH(ohem_count<W>, blocks, kThreads, stream, values, total, known, low, choice, table);
    SEAMSEG_LAUNCH(ohem_fix_digit, 1, kParts, stream, table, low, choice);
    known |= ((1ull << (high - low)) - 1) << low;
    high = low;
  }
  auto* ties = mutable_data<long long>(part_ties);
  auto* sums = mutable_data<double>(part_sums);
  SEAMSEG_LAUNCH(ohem_sum<W>, kParts, kParts, stream, values, total, choice, marks, sums, ties);
  SEAMSEG_LAUNCH(ohem_keep<W>, kParts, kParts, stream, values, total, count, choice, sums, ties, marks,
                 mutable_data<W>(loss));
}

std::tuple<Tensor, Tensor> upsample_ohem_loss(const Tensor& logits, int64_t padded_height, int64_t padded_width,
                                              const Tensor& target, double ohem) {
  const int64_t count = kept_pixels(logits, target, ohem);
  const int64_t height = target.size(0), width = target.size(1);
  const Shape shape = check_upsample(kOhemLoss, logits, padded_height, padded_width, height, width);
  STD_TORCH_CHECK(height * width < (int64_t{1} << 31), kOhemLoss, ": too many pixels");
  const DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(logits);
  const Tensor classes = torch::stable::contiguous(target);
  Tensor loss = torch::stable::new_empty(logits, {}, wide_type(logits));
  Tensor normaliser = torch::stable::new_empty(logits, {height, width}, wide_type(logits));
  Tensor entropy = torch::stable::new_empty(logits, {height, width}, wide_type(logits));
  dispatch_floating(logits, kOhemLoss, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const float down = source_scale(shape.height, padded_height), across = source_scale(shape.width, padded_width);
    const int64_t some = classes_of_a_tile<W>(shape, down, across);
    if (some > 0) {
      const int64_t tiles = parts_of(height, kTileRows) * parts_of(width, kTileColumns);
      SEAMSEG_LAUNCH(ohem_entropies<T>, static_cast<unsigned>(tiles), kTileThreads, stream, data<T>(logits), shape, down,
                     across, data<int64_t>(classes), height, width, static_cast<int>(some), mutable_data<W>(entropy),
                     mutable_data<W>(normaliser));
    } else {
      SEAMSEG_LAUNCH(ohem_entropies_directly<T>, blocks_for(height * width, kThreads), kThreads, stream,
                     data<T>(logits), shape, down, across, data<int64_t>(classes), height, width,
                     mutable_data<W>(entropy), mutable_data<W>(normaliser));
    }
    keep_hardest<W>(entropy, normaliser, count, loss, stream);
  });
  return {loss, normaliser};
}

Tensor upsample_ohem_loss_backward(const Tensor& grad, const Tensor& logits, int64_t padded_height,
                                   int64_t padded_width, const Tensor& target, const Tensor& normaliser,
                                   double ohem) {
  const int64_t count = kept_pixels(logits, target, ohem);
  const int64_t height = target.size(0), width = target.size(1);
  const Shape shape = check_upsample(kOhemLoss, logits, padded_height, padded_width, height, width);
  check_ohem_backward(grad, logits, target, normaliser);
  const DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(logits);
  const Tensor classes = torch::stable::contiguous(target), normalisers = torch::stable::contiguous(normaliser);
  Tensor gradient =
      torch::stable::new_empty(logits, {shape.classes, shape.height, shape.width}, wide_type(logits));
  dispatch_floating(logits, kOhemLoss, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const float down = source_scale(shape.height, padded_height), across = source_scale(shape.width, padded_width);
    const int cells = cells_of_a_tile<W>(down, across);
    const int64_t tiles = parts_of(shape.height, cells) * parts_of(shape.width, cells);
    if (cells > 0 && tiles <= std::numeric_limits<int32_t>::max()) {
      const int64_t groups = parts_of(shape.classes, kClasses);
      const dim3 grid(static_cast<unsigned>(tiles),
                      static_cast<unsigned>(std::max<int64_t>(1, std::min(groups, kGradientBlocks / tiles))));
      SEAMSEG_LAUNCH(ohem_gradient<T>, grid, kTileThreads, stream, data<T>(logits), shape, down, across,
                     data<int64_t>(classes), data<W>(normalisers), data<W>(grad), count, height, width, cells,
                     mutable_data<W>(gradient));
    } else {
      SEAMSEG_LAUNCH(ohem_gradient_directly<T>, blocks_for(gradient.numel(), kThreads), kThreads, stream,
                     data<T>(logits), shape, down, across, data<int64_t>(classes), data<W>(normalisers), data<W>(grad),
                     count, height, width, mutable_data<W>(gradient));
    }
  });
  return gradient;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("upsample_ohem_loss", TORCH_BOX(&seamseg::upsample_ohem_loss));
  m.impl("upsample_ohem_loss_backward", TORCH_BOX(&seamseg::upsample_ohem_loss_backward));
}
