// From an id map to the rows of images: overlays, and the filtered rows of a panoptic PNG. Arrays are contiguous; the
// caller has checked sizes and ranges.
#include <algorithm>
#include <array>
#include <vector>

#include "png_rows.h"

namespace seamseg {
namespace {

// Most blocks of a map lie within a segment, and so need no more than a comparison.
constexpr int64_t kPixels = 64;

// Whether each pixel of a row belongs to an outline before that is widened. Rows have a pixel more at both ends.
template <class Id>
SEAMSEG_CLONES bool mark_edges(const Id* SEAMSEG_RESTRICT up, const Id* SEAMSEG_RESTRICT row,
                               const Id* SEAMSEG_RESTRICT down, int64_t width, uint8_t* SEAMSEG_RESTRICT out) {
  bool any = false;
  for (int64_t begin = 0; begin < width; begin += kPixels) {
    const int64_t end = std::min(width, begin + kPixels);
    Id differ = 0;
    for (int64_t x = begin; x < end; ++x) {
      differ |= static_cast<Id>((row[x] ^ row[x - 1]) | (row[x] ^ row[x + 1]) | (row[x] ^ up[x]) | (row[x] ^ down[x]));
    }
    if (differ == 0) {
      std::memset(out + begin, 0, end - begin);
      continue;
    }
    any = true;
    for (int64_t x = begin; x < end; ++x) {
      const Id id = row[x];
      const auto other = [id](Id neighbour) { return Id{neighbour != 0} & Id{neighbour != id}; };
      const Id left = up[x - 1] | row[x - 1] | down[x - 1], right = up[x + 1] | row[x + 1] | down[x + 1];
      const Id others = other(up[x - 1]) | other(up[x]) | other(up[x + 1]) | other(row[x - 1]) | other(row[x + 1]) |
                        other(down[x - 1]) | other(down[x]) | other(down[x + 1]);
      const Id cross = Id{id != row[x - 1]} | Id{id != row[x + 1]} | Id{id != up[x]} | Id{id != down[x]};
      out[x] = static_cast<uint8_t>(cross & (Id{id == 0} | others | Id{left == 0} | Id{right == 0}));
    }
  }
  return any;
}

// Rows have a pixel more at both ends.
SEAMSEG_CLONES void widen(const uint8_t* SEAMSEG_RESTRICT up, const uint8_t* SEAMSEG_RESTRICT row,
                          const uint8_t* SEAMSEG_RESTRICT down, int64_t width, uint8_t* SEAMSEG_RESTRICT out) {
  for (int64_t x = 0; x < width; ++x) out[x] = up[x] | row[x - 1] | row[x] | row[x + 1] | down[x];
}

SEAMSEG_CLONES void mark_changes(const int32_t* SEAMSEG_RESTRICT ids, int64_t width,
                                 uint8_t* SEAMSEG_RESTRICT changed) {
  for (int64_t x = 1; x < width; ++x) changed[x] = ids[x] != ids[x - 1];
}

// Three bytes of colour for each of `count` pixels, and a byte after them.
inline void fill_color(uint8_t* out, const uint8_t* color, int64_t count) {
  const uint8_t word[4] = {color[0], color[1], color[2], 0};
  const int64_t first = std::min<int64_t>(count, 16);
  for (int64_t i = 0; i < first; ++i) std::memcpy(out + kPixel * i, word, 4);
  for (int64_t done = first; done < count;) {
    const int64_t more = std::min(done, count - done);
    std::memcpy(out + kPixel * done, out, kPixel * more);
    done += more;
  }
}

// An id map with what an overlay shows of each id below `count`; other ids are drawn as 0.
struct Shown {
  const int32_t* ids;
  int64_t height, width;
  const uint8_t* colors;
  const uint8_t* outlined;
  int64_t count;
};

// The rows of a drawing, of which each needs the two above and below it: see `outlines` in seamseg/maps/idmaps/reference.py.
template <class Id>
class Drawing {
 public:
  explicit Drawing(const Shown& shown) : shown_(shown), lines_(shown.width), changed_(shown.width) {
    for (auto& row : rows_) {
      row.instances.resize(shown.width + 2);
      row.colors.resize(kPixel * shown.width + 1);
    }
    for (auto& row : edges_) row.pixels.resize(shown.width + 2);
  }

  // The colour of each pixel of a row.
  const uint8_t* colors(int64_t y) { return row(y).colors.data(); }

  // Whether each pixel of a row belongs to an outline; null if none does.
  const uint8_t* lines(int64_t y) {
    const Edges &up = edges(y - 1), &here = edges(y), &down = edges(y + 1);
    if (!up.any && !here.any && !down.any) return nullptr;
    widen(up.pixels.data() + 1, here.pixels.data() + 1, down.pixels.data() + 1, shown_.width, lines_.data());
    return lines_.data();
  }

 private:
  struct Row {
    std::vector<Id> instances;  // their ids, 0 elsewhere; a pixel more at both ends
    std::vector<uint8_t> colors;
    int64_t y = -1;
    bool any = false;
  };

  struct Edges {
    std::vector<uint8_t> pixels;  // a pixel more at both ends
    int64_t y = -1;
    bool any = false;
  };

  // Beyond the border are copies of the pixels at it.
  int64_t inside(int64_t y) const { return std::clamp<int64_t>(y, 0, shown_.height - 1); }

  const Edges& edges(int64_t y) {
    y = inside(y);
    Edges& found = edges_[y % edges_.size()];
    if (found.y == y) return found;
    found.y = y;
    const Row &up = row(y - 1), &here = row(y), &down = row(y + 1);
    found.any = (up.any || here.any || down.any) &&
                mark_edges(up.instances.data() + 1, here.instances.data() + 1, down.instances.data() + 1, shown_.width,
                           found.pixels.data() + 1);
    if (!found.any) std::fill(found.pixels.begin(), found.pixels.end(), uint8_t{0});
    return found;
  }

  const Row& row(int64_t y) {
    y = inside(y);
    Row& found = rows_[y % rows_.size()];
    if (found.y == y) return found;
    found.y = y;
    found.any = false;
    const int32_t* ids = shown_.ids + y * shown_.width;
    mark_changes(ids, shown_.width, changed_.data());
    Id* instances = found.instances.data() + 1;
    for (int64_t x = 0, stop; x < shown_.width; x = stop) {
      stop = next_nonzero(changed_.data(), x + 1, shown_.width);
      const int64_t id = ids[x] >= 0 && ids[x] < shown_.count ? ids[x] : 0;
      const auto instance = static_cast<Id>(shown_.outlined[id] ? id : 0);
      std::fill(instances + x, instances + stop, instance);
      fill_color(found.colors.data() + kPixel * x, shown_.colors + kPixel * id, stop - x);
      found.any |= instance != 0;
    }
    instances[-1] = instances[0];
    instances[shown_.width] = instances[shown_.width - 1];
    return found;
  }

  const Shown shown_;
  std::array<Row, 5> rows_;
  std::array<Edges, 3> edges_;
  std::vector<uint8_t> lines_, changed_;
};

SEAMSEG_CLONES void average(const uint8_t* SEAMSEG_RESTRICT photo, const uint8_t* SEAMSEG_RESTRICT colors,
                            int64_t count, uint8_t* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>((photo[i] + colors[i]) >> 1);
}

SEAMSEG_CLONES void blend(const uint8_t* SEAMSEG_RESTRICT photo, const uint8_t* SEAMSEG_RESTRICT colors, int64_t count,
                          uint32_t share, uint8_t* SEAMSEG_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<uint8_t>((photo[i] * (256 - share) + colors[i] * share + 128) >> 8);
  }
}

SEAMSEG_CLONES bool equal_pixels(const int32_t* SEAMSEG_RESTRICT a, const int32_t* SEAMSEG_RESTRICT b, int64_t count) {
  int32_t differ = 0;
  for (int64_t i = 0; i < count; ++i) differ |= a[i] ^ b[i];
  return differ == 0;
}

struct Photo {
  const uint8_t* pixels;
  int64_t height, width;
  const int64_t* rows;
  const int64_t* columns;
};

template <class Id>
void draw(const Photo& photo, const Shown& shown, int32_t share, uint8_t* out) {
  Drawing<Id> drawing(shown);
  std::vector<uint8_t> stretched(photo.columns == nullptr ? 0 : kPixel * photo.width);
  for (int64_t y = 0; y < photo.height; ++y, out += kPixel * photo.width) {
    const uint8_t* pixels = photo.pixels + y * kPixel * photo.width;
    const uint8_t* lines = drawing.lines(photo.rows[y]);
    const uint8_t* colors = drawing.colors(photo.rows[y]);
    if (photo.columns != nullptr) {
      for (int64_t x = 0; x < photo.width; ++x) {
        std::memcpy(stretched.data() + kPixel * x, colors + kPixel * photo.columns[x], kPixel);
      }
      colors = stretched.data();
    }
    if (share < 0) {
      average(pixels, colors, kPixel * photo.width, out);
    } else {
      blend(pixels, colors, kPixel * photo.width, static_cast<uint32_t>(share), out);
    }
    if (lines == nullptr) continue;
    if (photo.columns == nullptr) {
      for (int64_t x = next_nonzero(lines, 0, photo.width); x < photo.width;
           x = next_nonzero(lines, x + 1, photo.width)) {
        std::memset(out + kPixel * x, 255, kPixel);
      }
    } else {
      for (int64_t x = 0; x < photo.width; ++x) {
        if (lines[photo.columns[x]]) std::memset(out + kPixel * x, 255, kPixel);
      }
    }
  }
}

}  // namespace
}  // namespace seamseg

// Blends `height` rows of a photo with the colours of an id map, and draws the outlines in white. Row y and column x of
// the photo show row rows[y] and column columns[x] of the map, or column x if it is null. `share` is that of the
// colours in 256; -1 for the mean, rounded down. Returns null on an error.
SEAMSEG_EXPORT const void* seamseg_overlay(const uint8_t* photo, int64_t height, int64_t width, const int32_t* ids,
                                           int64_t map_height, int64_t map_width, const int64_t* rows,
                                           const int64_t* columns, const uint8_t* colors, const uint8_t* outlined,
                                           int64_t count, int32_t share, uint8_t* out, char* error) {
  return seamseg::answer(error, [&]() -> const void* {
    const seamseg::Photo shown_on{photo, height, width, rows, columns};
    const seamseg::Shown shown{ids, map_height, map_width, colors, outlined, count};
    // narrow ids are compared twice as fast
    (count <= (1 << 15) ? seamseg::draw<int16_t> : seamseg::draw<int32_t>)(shown_on, shown, share, out);
    return out;
  });
}

// Writes rows of a panoptic PNG, each of 3 * width + 1 bytes: the value of each id below `count`, 0 for others, as
// R + 256 G + 65536 B and by the filter "up". Without values they are the ids. `above` is the row before the first,
// null if there is none.
SEAMSEG_EXPORT void seamseg_png_rows(const int32_t* ids, const int32_t* above, int64_t height, int64_t width,
                                     const uint32_t* values, int64_t count, uint8_t* out) {
  using namespace seamseg;
  const auto value = [&](int32_t id) -> uint32_t {
    if (values == nullptr) return static_cast<uint32_t>(id);
    return id >= 0 && id < count ? values[id] : 0;
  };
  for (int64_t y = 0; y < height; ++y, above = ids, ids += width) {
    *out++ = 2;
    for (int64_t begin = 0; begin < width; begin += kPixels) {
      const int64_t end = std::min(width, begin + kPixels);
      if (above != nullptr && equal_pixels(ids + begin, above + begin, end - begin)) {
        std::memset(out, 0, kPixel * (end - begin));
        out += kPixel * (end - begin);
        continue;
      }
      for (int64_t x = begin; x < end; ++x, out += kPixel) {
        const uint32_t here = value(ids[x]), before = above == nullptr ? 0 : value(above[x]);
        for (int c = 0; c < kPixel; ++c) out[c] = static_cast<uint8_t>((here >> 8 * c) - (before >> 8 * c));
      }
    }
  }
}
