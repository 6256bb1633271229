// Argument checks of the operators on upsampled logits.
#pragma once

#include <cmath>

#include "tensor.h"
#include "upsample.h"

namespace seamseg::upsampling {

constexpr const char* kOhemLoss = "upsample_ohem_loss";

inline Shape check_upsample(
    const char* op, const Tensor& logits, int64_t padded_height, int64_t padded_width, int64_t height, int64_t width) {
  STD_TORCH_CHECK(logits.dim() == 3 && logits.numel() > 0, op, ": logits must be a floating C x h x w");
  const bool inside = 0 < height && height <= padded_height && 0 < width && width <= padded_width;
  STD_TORCH_CHECK(inside, op, ": the valid size must be positive and inside the padded size");
  // classes are counted in 32 bits, pixels of an axis in float
  const int64_t limit = int64_t{1} << 24;
  STD_TORCH_CHECK(padded_height <= limit && padded_width <= limit, op, ": the padded size is too large");
  STD_TORCH_CHECK(logits.size(0) <= limit && logits.size(1) <= limit && logits.size(2) <= limit, op,
                  ": the logits are too large");
  return {logits.size(0),   logits.size(1),   logits.size(2),
          logits.stride(0), logits.stride(1), logits.stride(2)};
}

// How many pixels the loss is averaged over.
inline int64_t kept_pixels(const Tensor& logits, const Tensor& target, double ohem) {
  STD_TORCH_CHECK(target.device() == logits.device(), kOhemLoss, ": logits and target must be on one device");
  const bool fits = target.dim() == 2 && target.scalar_type() == ScalarType::Long;
  STD_TORCH_CHECK(fits, kOhemLoss, ": target must be int64 H x W");
  STD_TORCH_CHECK(ohem > 0 && ohem <= 1, kOhemLoss, ": ohem must be in (0, 1]");
  return static_cast<int64_t>(std::ceil(ohem * static_cast<double>(target.numel())));
}

inline void check_ohem_backward(const Tensor& grad, const Tensor& logits, const Tensor& target,
                                const Tensor& normaliser) {
  const ScalarType type = wide_type(logits);
  STD_TORCH_CHECK(grad.numel() == 1 && grad.scalar_type() == type, kOhemLoss, ": grad must be a scalar of the loss");
  const bool beside = grad.device() == logits.device() && normaliser.device() == logits.device();
  STD_TORCH_CHECK(beside, kOhemLoss, ": arguments must be on one device");
  const bool fits = same_shape(normaliser, target) && normaliser.scalar_type() == type;
  STD_TORCH_CHECK(fits, kOhemLoss, ": normaliser must be of the type of the loss and the shape of target");
}

}  // namespace seamseg::upsampling
