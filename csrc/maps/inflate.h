// Inflating a zlib stream (RFC 1950, 1951) that is mostly long runs of one byte, and handing it over row by row while it
// is in the cache. The input is not trusted: what is wrong with it ends in an exception.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "answer.h"
#include "zeros.h"

namespace seamseg {

// Meaning of a symbol: value << 16 | kind << 12 | extra bits << 4 | length of its code (0: in the second table).
enum Kind : uint32_t { kLiteral, kLength, kEnd, kInvalid };
constexpr uint32_t meaning(uint32_t value, Kind kind, uint32_t extra) { return value << 16 | kind << 12 | extra << 4; }

constexpr std::array<uint32_t, 288> literal_meanings() {
  std::array<uint32_t, 288> out{};
  for (uint32_t i = 0; i < 256; ++i) out[i] = meaning(i, kLiteral, 0);
  out[256] = meaning(0, kEnd, 0);
  uint32_t length = 3;
  for (uint32_t i = 0; i < 28; ++i) {
    const uint32_t extra = i < 8 ? 0 : i / 4 - 1;
    out[257 + i] = meaning(length, kLength, extra);
    length += 1u << extra;
  }
  out[285] = meaning(258, kLength, 0);
  out[286] = out[287] = meaning(0, kInvalid, 0);
  return out;
}

constexpr std::array<uint32_t, 32> distance_meanings() {
  std::array<uint32_t, 32> out{};
  uint32_t distance = 1;
  for (uint32_t i = 0; i < 30; ++i) {
    const uint32_t extra = i < 4 ? 0 : i / 2 - 1;
    out[i] = meaning(distance, kLength, extra);
    distance += 1u << extra;
  }
  out[30] = out[31] = meaning(0, kInvalid, 0);
  return out;
}

constexpr std::array<uint32_t, 19> plain_meanings() {
  std::array<uint32_t, 19> out{};
  for (uint32_t i = 0; i < 19; ++i) out[i] = meaning(i, kLiteral, 0);
  return out;
}

// A prefix code: short codes by table, the rare long ones bit by bit.
template <int kBits>
class PrefixCode {
 public:
  void build(const uint8_t* lengths, int count, const uint32_t* meanings, bool may_be_single) {
    counts_.fill(0);
    for (int i = 0; i < count; ++i) ++counts_[lengths[i]];
    counts_[0] = 0;
    std::array<uint16_t, 17> offset{};
    std::array<uint32_t, 17> next{};
    int32_t left = 1, longest = 0;
    for (int bits = 1; bits <= 15; ++bits) {
      left = 2 * left - counts_[bits];
      require(left >= 0, "a prefix code is over-subscribed");
      if (counts_[bits] != 0) longest = bits;
      offset[bits + 1] = static_cast<uint16_t>(offset[bits] + counts_[bits]);
      next[bits + 1] = (next[bits] + counts_[bits]) << 1;
    }
    require(left == 0 || (may_be_single && longest <= 1), "a prefix code is incomplete");
    table_.fill(0);
    for (int i = 0; i < count; ++i) {
      const int bits = lengths[i];
      if (bits == 0) continue;
      sorted_[offset[bits]++] = meanings[i];
      const uint32_t code = next[bits]++;
      if (bits > kBits) continue;
      uint32_t reversed = 0;
      for (int bit = 0; bit < bits; ++bit) reversed |= (code >> bit & 1u) << (bits - 1 - bit);
      for (uint32_t at = reversed; at < table_.size(); at += 1u << bits) table_[at] = meanings[i] | bits;
    }
  }

  uint32_t find(uint64_t ahead) const {
    const uint32_t found = table_[ahead & (table_.size() - 1)];
    return (found & 15u) != 0 ? found : find_long(ahead);
  }

 private:
  uint32_t find_long(uint64_t ahead) const {
    uint32_t code = 0, first = 0, index = 0;
    for (uint32_t bits = 1; bits <= 15; ++bits, ahead >>= 1) {
      code |= static_cast<uint32_t>(ahead & 1u);
      if (code < first + counts_[bits]) return sorted_[index + code - first] | bits;
      index += counts_[bits];
      first = (first + counts_[bits]) << 1;
      code <<= 1;
    }
    return meaning(0, kInvalid, 0) | 1u;
  }

  std::array<uint32_t, 1 << kBits> table_;
  std::array<uint32_t, 288> sorted_;
  std::array<uint16_t, 16> counts_;
};

// The bits of the stream, lowest first; past its end come zeros, and `check` throws.
class Bits {
 public:
  Bits(const uint8_t* in, const uint8_t* end) : in_(in), end_(end) {}

  // At least 56 bits ahead, if the stream has as many.
  SEAMSEG_INLINE void refill() {
    if (std::endian::native == std::endian::little && end_ - in_ >= 8) {
      uint64_t eight;
      std::memcpy(&eight, in_, 8);
      ahead_ |= eight << count_;
      in_ += (63 - count_) >> 3;
      count_ |= 56;
    } else {
      for (; count_ <= 56 && in_ < end_; count_ += 8) ahead_ |= static_cast<uint64_t>(*in_++) << count_;
    }
  }
  SEAMSEG_INLINE uint64_t ahead() const { return ahead_; }
  // At most 48 after a refill.
  SEAMSEG_INLINE uint32_t take(uint32_t bits) {
    const auto value = static_cast<uint32_t>(ahead_ & ((uint64_t{1} << bits) - 1));
    ahead_ >>= bits;
    count_ -= static_cast<int>(bits);
    return value;
  }
  SEAMSEG_INLINE void check() const { require(count_ >= 0, "the compressed data end too early"); }

  // Drops what is left of a byte; the bytes from there on.
  const uint8_t* align() {
    check();
    in_ -= count_ >> 3;
    ahead_ = 0;
    count_ = 0;
    return in_;
  }
  const uint8_t* end() const { return end_; }
  void skip(int64_t bytes) { in_ += bytes; }

 private:
  const uint8_t* in_;
  const uint8_t* end_;
  uint64_t ahead_ = 0;
  int count_ = 0;
};

// The sum of RFC 1950, in steps of words that are zero or not.
class Adler32 {
 public:
  void add(const uint8_t* p, int64_t count) {
    constexpr int64_t kReduce = 4096;
    while (count > 0) {
      const int64_t now = std::min(count, kReduce);
      int64_t i = 0;
      for (; i + 64 <= now; i += 64) {
        if (all_zero(p + i)) {
          second_ += 64 * first_;
        } else {
          for (int64_t j = i; j < i + 64; j += 8) {
            if (word_at(p + j) == 0) {
              second_ += 8 * first_;
            } else {
              add_bytes(p + j, 8);
            }
          }
        }
      }
      add_bytes(p + i, now - i);
      first_ %= 65521;
      second_ %= 65521;
      p += now;
      count -= now;
    }
  }
  uint32_t value() const { return static_cast<uint32_t>(second_ << 16 | first_); }

 private:
  void add_bytes(const uint8_t* p, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      first_ += p[i];
      second_ += first_;
    }
  }
  uint64_t first_ = 1, second_ = 0;
};

// Calls take_row(pointer) for each of `rows` rows of `row` bytes.
template <class TakeRow>
class Inflater {
 public:
  Inflater(const uint8_t* in, int64_t size, int64_t rows, int64_t row, TakeRow take_row)
      : bits_(in + 2, in + size), row_(row), left_(rows * row), take_row_(take_row) {
    require(size >= 6 && (in[0] & 15) == 8 && (in[0] >> 4) <= 7 && (in[0] << 8 | in[1]) % 31 == 0, "not a zlib stream");
    require((in[1] & 32) == 0, "a zlib stream with a dictionary");
    window_.resize(kHistory + std::max<int64_t>(kRoom, 2 * row) + kSlack);
    at_ = window_.data();
    unread_ = at_;
    limit_ = window_.data() + window_.size() - kSlack;
  }

  void run() {
    bool last = false;
    while (!last) {
      bits_.refill();
      last = bits_.take(1) != 0;
      const uint32_t kind = bits_.take(2);
      bits_.check();
      require(kind != 3, "a block of unknown kind");
      if (kind == 0) {
        stored();
      } else {
        if (kind == 1) fixed();
        if (kind == 2) dynamic();
        block();
      }
    }
    hand_over();
    require(left_ == 0, "the compressed data are too short for the size");
    const uint8_t* tail = bits_.align();
    require(bits_.end() - tail >= 4, "the checksum is missing");
    const uint32_t sum = static_cast<uint32_t>(tail[0]) << 24 | tail[1] << 16 | tail[2] << 8 | tail[3];
    require(sum == adler_.value(), "the checksum of the data is wrong");
  }

 private:
  static constexpr int64_t kHistory = 32768, kRoom = 1 << 17, kSlack = 512;

  void hand_over() {
    for (; at_ - unread_ >= row_; unread_ += row_) {
      adler_.add(unread_, row_);
      take_row_(unread_);
    }
    uint8_t* keep = std::min(unread_, std::max(window_.data(), at_ - kHistory));
    const int64_t shift = keep - window_.data();
    if (shift == 0) return;
    std::memmove(window_.data(), keep, at_ - keep);
    at_ -= shift;
    unread_ -= shift;
  }

  void stored() {
    const uint8_t* p = bits_.align();
    require(bits_.end() - p >= 4, "the compressed data end too early");
    const int64_t count = p[0] | p[1] << 8;
    require(count == ((p[2] | p[3] << 8) ^ 0xffff), "a stored block of unclear length");
    require(bits_.end() - p - 4 >= count, "the compressed data end too early");
    require(count <= left_, "the compressed data are too long for the size");
    bits_.skip(4 + count);
    left_ -= count;
    p += 4;
    for (int64_t rest = count; rest > 0;) {
      if (at_ >= limit_) hand_over();
      const int64_t now = std::min<int64_t>(rest, limit_ - at_);
      std::memcpy(at_, p, now);
      at_ += now;
      p += now;
      rest -= now;
    }
  }

  void fixed() {
    std::array<uint8_t, 288> lengths;
    for (int i = 0; i < 288; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    literals_.build(lengths.data(), 288, kLiterals.data(), false);
    lengths.fill(5);
    distances_.build(lengths.data(), 32, kDistances.data(), false);
  }

  void dynamic() {
    static constexpr std::array<uint8_t, 19> kOrder = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    bits_.refill();
    const int literals = 257 + bits_.take(5), distances = 1 + bits_.take(5), codes = 4 + bits_.take(4);
    require(literals <= 286 && distances <= 30, "a block has too many symbols");
    std::array<uint8_t, 320> lengths{};
    for (int i = 0; i < codes; ++i) {
      bits_.refill();
      lengths[kOrder[i]] = static_cast<uint8_t>(bits_.take(3));
    }
    bits_.check();
    lengths_code_.build(lengths.data(), 19, kPlain.data(), false);
    lengths.fill(0);
    for (int i = 0; i < literals + distances;) {
      bits_.refill();
      const uint32_t found = lengths_code_.find(bits_.ahead());
      bits_.take(found & 15u);
      const uint32_t symbol = found >> 16;
      if (symbol < 16) {
        lengths[i++] = static_cast<uint8_t>(symbol);
      } else {
        require(symbol != 16 || i > 0, "a length is repeated before the first");
        const uint8_t length = symbol == 16 ? lengths[i - 1] : 0;
        const int times = symbol == 16 ? 3 + bits_.take(2) : symbol == 17 ? 3 + bits_.take(3) : 11 + bits_.take(7);
        require(i + times <= literals + distances, "lengths of codes are repeated too often");
        for (int k = 0; k < times; ++k) lengths[i++] = length;
      }
      bits_.check();
    }
    require(lengths[256] != 0, "a block has no end");
    literals_.build(lengths.data(), literals, kLiterals.data(), true);
    distances_.build(lengths.data() + literals, distances, kDistances.data(), true);
  }

  void block() {
    for (;;) {
      if (at_ >= limit_) hand_over();
      bits_.refill();
      uint32_t found = literals_.find(bits_.ahead());
      bits_.take(found & 15u);
      const uint32_t kind = found >> 12 & 3u;
      if (kind == kLiteral) {
        require(left_ > 0, "the compressed data are too long for the size");
        *at_++ = static_cast<uint8_t>(found >> 16);
        --left_;
        bits_.check();
        continue;
      }
      if (kind == kEnd) return bits_.check();
      require(kind == kLength, "an unknown symbol");
      const int64_t length = (found >> 16) + bits_.take(found >> 4 & 15u);
      found = distances_.find(bits_.ahead());
      bits_.take(found & 15u);
      require((found >> 12 & 3u) == kLength, "an unknown distance");
      const int64_t distance = (found >> 16) + bits_.take(found >> 4 & 15u);
      bits_.check();
      require(length <= left_, "the compressed data are too long for the size");
      require(distance <= at_ - window_.data(), "a distance beyond the beginning");
      left_ -= length;
      repeat(length, distance);
    }
  }

  void repeat(int64_t length, int64_t distance) {
    uint8_t* out = at_;
    at_ += length;
    if (distance == 1) {
      std::memset(out, out[-1], length);
      return;
    }
    // what has been copied can be copied from: the distance grows
    for (; length > distance; distance *= 2) {
      std::memcpy(out, out - distance, distance);
      out += distance;
      length -= distance;
    }
    std::memcpy(out, out - distance, length);
  }

  static constexpr auto kLiterals = literal_meanings();
  static constexpr auto kDistances = distance_meanings();
  static constexpr auto kPlain = plain_meanings();

  Bits bits_;
  int64_t row_, left_;
  TakeRow take_row_;
  std::vector<uint8_t> window_;
  uint8_t *at_, *unread_, *limit_;
  Adler32 adler_;
  PrefixCode<12> literals_;
  PrefixCode<10> distances_;
  PrefixCode<7> lengths_code_;
};

}  // namespace seamseg
