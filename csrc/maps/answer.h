// How the C functions of this library fail, and how they hand over what has no size known before. Nothing here is of
// torch or of Python: callers that need neither load it alone.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

namespace seamseg {

// Room for the words of an error.
constexpr int64_t kWords = 200;

// Throws unless it holds.
inline void require(bool holds, const char* words) {
  if (!holds) throw std::runtime_error(words);
}

// What `work` returns, a pointer that the caller gives back to be freed; null if it throws, with the words in `error`.
template <class Work>
auto answer(char* error, Work&& work) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    std::snprintf(error, kWords, "not enough memory");
  } catch (const std::exception& failure) {
    std::snprintf(error, kWords, "%s", failure.what());
  }
  return nullptr;
}

}  // namespace seamseg
