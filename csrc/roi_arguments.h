// The arguments of the ROI operators, checked and put in order for the kernels of either device.
#pragma once

#include "roi_sampling.h"
#include "tensor.h"

namespace seamseg {

struct RoiCall {
  std::vector<RoiMap> maps;
  RoiGrid grid;
  int64_t count = 0, channels = 0;
  Tensor boxes, index;
  std::optional<Tensor> level;
};

inline bool is_floating(const Tensor& x) {
  const ScalarType type = x.scalar_type();
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::BFloat16 ||
         type == ScalarType::Half;
}

// Everything but the maps; `count` of them, of which boxes name one by `level`.
inline RoiCall roi_call(const Tensor& like, size_t count, const Tensor& boxes, const Tensor& index,
                        const std::optional<Tensor>& level, const std::vector<int64_t>& padded_size, int64_t height,
                        int64_t width, bool nearest, bool zero) {
  STD_TORCH_CHECK(count > 0, "roi_sampling: levels is empty");
  STD_TORCH_CHECK(boxes.dim() == 2 && boxes.size(1) == 4, "roi_sampling: boxes must be K x 4");
  STD_TORCH_CHECK(boxes.scalar_type() == ScalarType::Float || boxes.scalar_type() == ScalarType::Double,
                  "roi_sampling: boxes must be float32 or float64");
  STD_TORCH_CHECK(level.has_value() || count == 1, "roi_sampling: more than one level, but no level of each box");
  for (const Tensor* t : {&index, level.has_value() ? &*level : &index}) {
    STD_TORCH_CHECK(t->dim() == 1 && t->size(0) == boxes.size(0) && t->scalar_type() == ScalarType::Long,
                    "roi_sampling: index and level must be one int64 a box");
    STD_TORCH_CHECK(t->device() == like.device(), "roi_sampling: arguments must be on one device");
  }
  STD_TORCH_CHECK(boxes.device() == like.device(), "roi_sampling: arguments must be on one device");
  STD_TORCH_CHECK(height > 0 && width > 0, "roi_sampling: out_size must be positive");
  STD_TORCH_CHECK(padded_size.size() == 2 && padded_size[0] >= 0 && padded_size[1] >= 0 &&
                      (padded_size[0] > 0) == (padded_size[1] > 0),
                  "roi_sampling: padded_size must be two positive numbers, or two zeros");
  const bool mapped = padded_size[0] > 0;
  RoiCall call;
  call.grid = {height, width, nearest, zero, mapped};
  call.count = boxes.size(0);
  call.boxes = torch::stable::contiguous(boxes);
  call.index = torch::stable::contiguous(index);
  if (level.has_value()) call.level = torch::stable::contiguous(*level);
  return call;
}

inline void add_map(RoiCall& call, const Tensor& x, const std::vector<int64_t>& padded_size) {
  STD_TORCH_CHECK(x.dim() == 4 && x.size(2) > 0 && x.size(3) > 0,
                  "roi_sampling: levels must be N x C x H x W with pixels");
  if (call.maps.empty()) call.channels = x.size(1);
  STD_TORCH_CHECK(x.size(1) == call.channels, "roi_sampling: levels must have the same number of channels");
  RoiMap map{x.size(0), x.size(2), x.size(3), x.stride(0), x.stride(1), x.stride(2), x.stride(3), 1.0, 1.0};
  if (call.grid.mapped) {
    map.scale_y = static_cast<double>(map.height) / static_cast<double>(padded_size[0]);
    map.scale_x = static_cast<double>(map.width) / static_cast<double>(padded_size[1]);
  }
  call.maps.push_back(map);
}

inline RoiCall roi_forward_call(const std::vector<Tensor>& levels, const Tensor& boxes, const Tensor& index,
                                const std::optional<Tensor>& level, const std::vector<int64_t>& padded_size,
                                int64_t height, int64_t width, bool nearest, bool zero) {
  STD_TORCH_CHECK(!levels.empty(), "roi_sampling: levels is empty");
  RoiCall call = roi_call(levels[0], levels.size(), boxes, index, level, padded_size, height, width, nearest, zero);
  for (const Tensor& x : levels) {
    STD_TORCH_CHECK(x.scalar_type() == levels[0].scalar_type() && x.device() == levels[0].device(),
                    "roi_sampling: levels must have one dtype and device");
    add_map(call, x, padded_size);
  }
  return call;
}

// The gradients of the levels are made here, with nothing in them yet: of dtype `dtype` and, by choice, in the memory
// format of the caller or all channels last.
inline RoiCall roi_backward_call(const Tensor& dy, const std::vector<int64_t>& shapes,
                                 const std::vector<bool>& channels_last, const Tensor& boxes, const Tensor& index,
                                 const std::optional<Tensor>& level, const std::vector<int64_t>& padded_size,
                                 bool nearest, bool zero, std::vector<Tensor>& gradients) {
  STD_TORCH_CHECK(dy.dim() == 4 && dy.size(0) == boxes.size(0), "roi_sampling_backward: dy must be K x C x h x w");
  STD_TORCH_CHECK(shapes.size() == 4 * channels_last.size(),
                  "roi_sampling_backward: shapes must be four numbers a level");
  RoiCall call = roi_call(dy, channels_last.size(), boxes, index, level, padded_size, dy.size(2), dy.size(3), nearest,
                          zero);
  for (size_t i = 0; i < channels_last.size(); ++i) {
    const std::vector<int64_t> shape(shapes.begin() + 4 * i, shapes.begin() + 4 * i + 4);
    for (const int64_t side : shape) STD_TORCH_CHECK(side >= 0, "roi_sampling_backward: shapes must not be negative");
    gradients.push_back(empty_like_of(dy, shape, dy.scalar_type(), channels_last[i]));
    add_map(call, gradients.back(), padded_size);
  }
  STD_TORCH_CHECK(call.channels == dy.size(1), "roi_sampling_backward: dy must have the channels of the levels");
  return call;
}

}  // namespace seamseg
