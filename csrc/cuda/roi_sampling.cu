// ROI sampling: the host side. All levels of a pyramid in one launch, nothing is read back.
#include <type_traits>

#include "../roi_arguments.h"
#include "common.cuh"
#include "roi_sampling_kernels.cuh"

namespace seamseg {
namespace {

RoiPyramid pyramid_of(const RoiCall& call, const std::vector<Tensor>& tensors) {
  STD_TORCH_CHECK(tensors.size() <= kRoiLevels, "roi_sampling: at most ", kRoiLevels, " levels on CUDA");
  RoiPyramid pyramid{};
  pyramid.count = static_cast<int64_t>(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    pyramid.maps[i] = call.maps[i];
    pyramid.data[i] = tensors[i].data_ptr();
  }
  return pyramid;
}

template <class B>
RoiBoxes<B> boxes_of(const RoiCall& call) {
  return {data<B>(call.boxes), data<int64_t>(call.index), data_or_null<int64_t>(call.level),
          call.count,          call.channels,             call.grid};
}

unsigned sample_blocks(const RoiCall& call) {
  const int64_t points = call.grid.height * call.grid.width;
  return blocks_for(call.count * ((points + kRoiSamples - 1) / kRoiSamples), 1);
}

// Call f with a value of the type of the boxes.
template <class F>
void dispatch_boxes(const Tensor& boxes, F&& f) {
  if (boxes.scalar_type() == ScalarType::Double) return f(double{});
  f(float{});
}

// Whether the channels of all pixels lie in whole, aligned groups of `bytes`.
bool in_groups(const RoiCall& call, const RoiPyramid& pyramid, int64_t bytes, int64_t element) {
  bool whole = call.channels * element % bytes == 0;
  for (int64_t i = 0; i < pyramid.count; ++i) {
    const RoiMap& map = pyramid.maps[i];
    whole = whole && reinterpret_cast<uintptr_t>(pyramid.data[i]) % bytes == 0;
    for (const int64_t stride : {map.stride_image, map.stride_row, map.stride_column}) {
      whole = whole && stride * element % bytes == 0;
    }
  }
  return whole;
}

template <class T, class B>
void forward(const RoiCall& call, const RoiPyramid& pyramid, T* out, cudaStream_t stream) {
  const RoiBoxes<B> boxes = boxes_of<B>(call);
  if constexpr (std::is_integral_v<T>) {
    const int64_t count = call.count * call.grid.height * call.grid.width * call.channels;
    SEAMSEG_LAUNCH((roi_forward_nearest<T, B>), blocks_for(count, kRoiThreads), kRoiThreads, stream, pyramid, boxes,
                   out);
  } else {
    using W = wide_t<T>;
    constexpr int kPack = 16 / sizeof(T);
    bool vectors = true;
    for (int64_t i = 0; i < pyramid.count; ++i) {
      vectors = vectors && (pyramid.maps[i].stride_channel == 1 || call.channels == 1);
    }
    const unsigned blocks = sample_blocks(call);
    if (!vectors) {
      SEAMSEG_LAUNCH((roi_forward_planes<T, W, B>), blocks, kRoiThreads, stream, pyramid, boxes, out);
    } else if (in_groups(call, pyramid, 16, sizeof(T))) {
      SEAMSEG_LAUNCH((roi_forward_vectors<T, W, B, kPack>), blocks, kRoiThreads, stream, pyramid, boxes, out);
    } else {
      SEAMSEG_LAUNCH((roi_forward_vectors<T, W, B, 1>), blocks, kRoiThreads, stream, pyramid, boxes, out);
    }
  }
}

Tensor roi_sampling(const std::vector<Tensor>& levels, const Tensor& boxes, const Tensor& index,
                    const std::optional<Tensor>& level, const std::vector<int64_t>& padded_size, int64_t height,
                    int64_t width, bool nearest, bool zero) {
  const RoiCall call = roi_forward_call(levels, boxes, index, level, padded_size, height, width, nearest, zero);
  const Tensor& x = levels[0];
  const DeviceGuard guard(x.get_device_index());
  Tensor y = empty_like_of(x, {call.count, call.channels, height, width}, x.scalar_type(), true);
  const RoiPyramid pyramid = pyramid_of(call, levels);
  if (y.numel() == 0) return y;
  const cudaStream_t stream = current_stream(x);
  // a copy needs no arithmetic: integers of the same size stand in for every type
  const auto copy = [&](auto zero_of_t) {
    using T = decltype(zero_of_t);
    dispatch_boxes(call.boxes, [&](auto zero_of_b) {
      forward<T, decltype(zero_of_b)>(call, pyramid, static_cast<T*>(y.data_ptr()), stream);
    });
  };
  if (!nearest) {
    dispatch_floating(x, "roi_sampling", copy);
    return y;
  }
  switch (x.element_size()) {
    case 1:
      copy(uint8_t{});
      break;
    case 2:
      copy(int16_t{});
      break;
    case 4:
      copy(int32_t{});
      break;
    default:
      STD_TORCH_CHECK(x.element_size() == 8, "roi_sampling: levels must be of an element type of 1, 2, 4 or 8 bytes");
      copy(int64_t{});
  }
  return y;
}

template <class T, class B>
void backward(const RoiCall& call, const RoiPyramid& pyramid, const Tensor& dy, bool deterministic,
              cudaStream_t stream) {
  using W = wide_t<T>;
  const RoiBoxes<B> boxes = boxes_of<B>(call);
  if (!deterministic) {
    SEAMSEG_LAUNCH((roi_backward_scatter<T, W, B>), sample_blocks(call), kRoiThreads, stream, pyramid, boxes,
                   data<T>(dy));
    return;
  }
  int64_t rows = 0;
  for (const RoiMap& map : call.maps) rows += map.images * map.height;
  if (rows == 0) return;
  const int threads = call.channels <= 64 ? 64 : (call.channels <= 128 ? 128 : kRoiThreads);
  const dim3 blocks(blocks_for(rows, 1), blocks_for(call.channels, threads));
  SEAMSEG_LAUNCH((roi_backward_gather<T, W, B>), blocks, threads, stream, pyramid, boxes, rows, data<T>(dy));
}

std::vector<Tensor> roi_sampling_backward(const Tensor& dy, const std::vector<int64_t>& shapes,
                                          const std::vector<bool>& channels_last, const Tensor& boxes,
                                          const Tensor& index, const std::optional<Tensor>& level,
                                          const std::vector<int64_t>& padded_size, bool nearest, bool zero,
                                          bool deterministic) {
  const DeviceGuard guard(dy.get_device_index());
  std::vector<Tensor> gradients;
  RoiCall call =
      roi_backward_call(dy, shapes, channels_last, boxes, index, level, padded_size, nearest, zero, gradients);
  const Tensor vectors = torch::stable::contiguous(dy, MemoryFormat::ChannelsLast);
  const cudaStream_t stream = current_stream(dy);
  dispatch_floating(vectors, "roi_sampling_backward", [&](auto zero_of_t) {
    using T = decltype(zero_of_t);
    // Sums are made channels last and in float or double: in the gradient itself where it is that already
    constexpr bool kWide = std::is_same_v<T, wide_t<T>>;
    const ScalarType wide = kWide ? vectors.scalar_type() : ScalarType::Float;
    std::vector<Tensor> sums;
    RoiCall into = call;
    into.maps.clear();
    for (size_t i = 0; i < gradients.size(); ++i) {
      const RoiMap& map = call.maps[i];
      const bool direct = kWide && channels_last[i];
      Tensor sum = direct ? gradients[i]
                          : empty_like_of(dy, {map.images, call.channels, map.height, map.width}, wide, true);
      torch::stable::zero_(sum);
      add_map(into, sum, padded_size);
      sums.push_back(sum);
    }
    const RoiPyramid pyramid = pyramid_of(into, sums);
    if (vectors.numel() > 0) {
      dispatch_boxes(call.boxes, [&](auto zero_of_b) {
        backward<T, decltype(zero_of_b)>(into, pyramid, vectors, deterministic, stream);
      });
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!kWide || !channels_last[i]) torch::stable::copy_(gradients[i], sums[i]);
    }
  });
  return gradients;
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CUDA, m) {
  m.impl("roi_sampling", TORCH_BOX(&seamseg::roi_sampling));
  m.impl("roi_sampling_backward", TORCH_BOX(&seamseg::roi_sampling_backward));
}
