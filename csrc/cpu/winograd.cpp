// The transforms of Winograd's F(4x4, 3x3) on maps in channels-last order; the products between them are the caller's.
// Tiles are numbered by image, row of tiles and column of tiles of each of the maps of every `dilation`-th pixel.
#include <algorithm>
#include <array>

#include "common.h"

namespace seamseg {
namespace {

constexpr int64_t kLanes = 16;
// Six pointers to kLanes channels each, which a transform reads or writes.
using Read = const float* const (&)[6];
using Write = float* const (&)[6];

// The polynomials are evaluated at 0, +-a, +-b and infinity.
constexpr float kA = 0.75f, kB = 1.5f, kA2 = kA * kA, kB2 = kB * kB, kSum = kA2 + kB2, kProduct = kA2 * kB2;

SEAMSEG_INLINE void transform_input(Read x, Write y) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    const float even_a = x[4][l] - kB2 * x[2][l], odd_a = kA * (x[3][l] - kB2 * x[1][l]);
    const float even_b = x[4][l] - kA2 * x[2][l], odd_b = kB * (x[3][l] - kA2 * x[1][l]);
    y[0][l] = kProduct * x[0][l] - kSum * x[2][l] + x[4][l];
    y[1][l] = even_a + odd_a;
    y[2][l] = even_a - odd_a;
    y[3][l] = even_b + odd_b;
    y[4][l] = even_b - odd_b;
    y[5][l] = kProduct * x[1][l] - kSum * x[3][l] + x[5][l];
  }
}

// Writes only the first four of y.
SEAMSEG_INLINE void transform_output(Read x, Write y) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    const float sum_a = x[1][l] + x[2][l], difference_a = x[1][l] - x[2][l];
    const float sum_b = x[3][l] + x[4][l], difference_b = x[3][l] - x[4][l];
    y[0][l] = x[0][l] + sum_a + sum_b;
    y[1][l] = kA * difference_a + kB * difference_b;
    y[2][l] = kA2 * sum_a + kB2 * sum_b;
    y[3][l] = kA2 * kA * difference_a + kB2 * kB * difference_b + x[5][l];
  }
}

// The transpose of transform_output; reads four of x.
SEAMSEG_INLINE void transform_gradient(Read x, Write y) {
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) {
    const float even_a = x[0][l] + kA2 * x[2][l], odd_a = kA * (x[1][l] + kA2 * x[3][l]);
    const float even_b = x[0][l] + kB2 * x[2][l], odd_b = kB * (x[1][l] + kB2 * x[3][l]);
    y[0][l] = x[0][l];
    y[1][l] = even_a + odd_a;
    y[2][l] = even_a - odd_a;
    y[3][l] = even_b + odd_b;
    y[4][l] = even_b - odd_b;
    y[5][l] = x[3][l];
  }
}

SEAMSEG_INLINE void transform(bool gradient, Read x, Write y) {
  if (gradient) {
    transform_gradient(x, y);
  } else {
    transform_input(x, y);
  }
}

// The pixels of a map, `channels` apart.
struct Map {
  int64_t images, height, width, channels, dilation;
  int64_t columns() const { return (width + 4 * dilation - 1) / (4 * dilation); }
  int64_t rows() const { return (height + 4 * dilation - 1) / (4 * dilation); }
  int64_t offset(int64_t image, int64_t y, int64_t x) const { return ((image * height + y) * width + x) * channels; }
};

// Image, and the first pixel of the outputs of a tile.
struct Place {
  int64_t image, y, x;
};

Place place_of(const Map& map, int64_t first, int64_t rows, int64_t tile) {
  const int64_t columns = map.columns(), d = map.dilation;
  const int64_t column = tile % columns, phase_x = tile / columns % d, row = tile / (columns * d) % rows;
  const int64_t phase_y = tile / (columns * d * rows) % d, image = tile / (columns * d * rows * d);
  return {image, 4 * d * (first + row) + phase_y, 4 * d * column + phase_x};
}

// The inputs of a tile, 6x6 pixels, or `gradient`s of its outputs, 4x4.
SEAMSEG_CLONES void input_tile(const float* x, const Map& map, const Place& place, bool gradient, float* out,
                               int64_t plane) {
  const int64_t d = map.dilation, side = gradient ? 4 : 6, border = gradient ? 0 : 1;
  static constexpr float kZeros[kLanes] = {};
  const float* pixels[6][6] = {};  // by column and row; null for the zeros around the map
  for (int64_t j = 0; j < side; ++j) {
    for (int64_t i = 0; i < side; ++i) {
      const int64_t row = place.y + (i - border) * d, column = place.x + (j - border) * d;
      const bool inside = row >= 0 && row < map.height && column >= 0 && column < map.width;
      if (inside) pixels[j][i] = x + map.offset(place.image, row, column);
    }
  }
  alignas(64) float half[6][6][kLanes];
  for (int64_t c = 0; c < map.channels; c += kLanes) {
    for (int64_t j = 0; j < side; ++j) {
      const float* from[6];
      for (int64_t i = 0; i < 6; ++i) from[i] = pixels[j][i] != nullptr ? pixels[j][i] + c : kZeros;
      transform(gradient, from, {half[0][j], half[1][j], half[2][j], half[3][j], half[4][j], half[5][j]});
    }
    for (int64_t i = 0; i < 6; ++i) {
      float* to[6];
      for (int64_t j = 0; j < 6; ++j) to[j] = out + (6 * i + j) * plane + c;
      transform(gradient, {half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5]}, to);
    }
  }
}

struct Epilogue {
  const float *bias, *residual;
  float slope;
};

SEAMSEG_CLONES void output_tile(const float* const (&products)[36], const Map& map, const Place& place,
                                const Epilogue& epilogue, float* out) {
  const int64_t d = map.dilation;
  const float slope = epilogue.slope;
  alignas(64) float half[4][6][kLanes], made[4][kLanes];
  for (int64_t c = 0; c < map.channels; c += kLanes) {
    for (int64_t j = 0; j < 6; ++j) {
      const float* from[6];
      for (int64_t i = 0; i < 6; ++i) from[i] = products[6 * i + j] + c;
      transform_output(from, {half[0][j], half[1][j], half[2][j], half[3][j]});
    }
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = place.y + i * d;
      if (row >= map.height) break;
      transform_output({half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5]},
                       {made[0], made[1], made[2], made[3]});
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t column = place.x + j * d;
        if (column >= map.width) break;
        const int64_t offset = map.offset(place.image, row, column) + c;
        const float* residual = epilogue.residual != nullptr ? epilogue.residual + offset : nullptr;
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) {
          const float value = made[j][l] + epilogue.bias[c + l] + (residual != nullptr ? residual[l] : 0.f);
          out[offset + l] = value > 0 ? value : value * slope;
        }
      }
    }
  }
}

Map map_of(const Tensor& x, int64_t dilation, int64_t first, int64_t rows, const char* op) {
  STD_TORCH_CHECK(x.dim() == 4 && x.scalar_type() == ScalarType::Float && x.is_contiguous() && x.size(3) % kLanes == 0,
                  op, ": expected a contiguous float32 N x H x W x C, C a multiple of 16");
  STD_TORCH_CHECK(dilation > 0 && dilation <= 4096, op, ": expected a dilation of 1 to 4096");
  const Map map{x.size(0), x.size(1), x.size(2), x.size(3), dilation};
  STD_TORCH_CHECK(first >= 0 && rows > 0 && first < map.rows() && rows <= map.rows() - first, op,
                  ": expected rows of tiles of the map");
  return map;
}

Tensor transform_tiles(const Tensor& x, int64_t dilation, int64_t first, int64_t rows, bool gradient, const char* op) {
  const Map map = map_of(x, dilation, first, rows, op);
  const int64_t tiles = map.images * dilation * rows * dilation * map.columns();
  Tensor y = torch::stable::new_empty(x, {36, tiles, map.channels});
  const float* from = data<float>(x);
  float* to = mutable_data<float>(y);
  torch::stable::parallel_for(0, tiles, 8, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const Place place = place_of(map, first, rows, tile);
      input_tile(from, map, place, gradient, to + tile * map.channels, tiles * map.channels);
    }
  });
  return y;
}

Tensor winograd_input(const Tensor& x, int64_t dilation, int64_t first, int64_t rows) {
  return transform_tiles(x, dilation, first, rows, false, "winograd_input");
}

Tensor winograd_gradient(const Tensor& dy, int64_t dilation, int64_t first, int64_t rows) {
  return transform_tiles(dy, dilation, first, rows, true, "winograd_gradient");
}

void winograd_output(const std::vector<Tensor>& products, const Tensor& bias, const std::optional<Tensor>& residual,
                     double slope, Tensor out, int64_t dilation, int64_t first, int64_t rows) {
  const Map map = map_of(out, dilation, first, rows, "winograd_output");
  const int64_t tiles = map.images * dilation * rows * dilation * map.columns();
  const auto is_plain = [&](const Tensor& x, int64_t numel) {
    return x.scalar_type() == ScalarType::Float && x.is_contiguous() && x.numel() == numel;
  };
  STD_TORCH_CHECK(products.size() == 36 && std::all_of(products.begin(), products.end(), [&](const Tensor& x) {
                    return is_plain(x, tiles * map.channels);
                  }), "winograd_output: expected 36 contiguous products, float32 tiles x C");
  STD_TORCH_CHECK(is_plain(bias, map.channels) && (!residual || is_plain(*residual, out.numel())),
                  "winograd_output: expected a bias of C and a residual like out");
  const Epilogue epilogue{data<float>(bias), data_or_null<float>(residual), static_cast<float>(slope)};
  std::array<const float*, 36> from;
  for (int64_t i = 0; i < 36; ++i) from[i] = data<float>(products[i]);
  float* to = mutable_data<float>(out);
  torch::stable::parallel_for(0, tiles, 8, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const float* rows_of_tile[36];
      for (int64_t i = 0; i < 36; ++i) rows_of_tile[i] = from[i] + tile * map.channels;
      output_tile(rows_of_tile, map, place_of(map, first, rows, tile), epilogue, to);
    }
  });
}

}  // namespace
}  // namespace seamseg

STABLE_TORCH_LIBRARY_IMPL(seamseg, CPU, m) {
  m.impl("winograd_input", TORCH_BOX(&seamseg::winograd_input));
  m.impl("winograd_gradient", TORCH_BOX(&seamseg::winograd_gradient));
  m.impl("winograd_output", TORCH_BOX(&seamseg::winograd_output));
}
