// Errors and results of the C functions of this library. It depends on neither torch nor Python.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

namespace seamseg {

// Size of the buffer for an error message.
constexpr int64_t kMessageSize = 200;

// Throws std::runtime_error unless the condition holds.
inline void require(bool holds, const char* message) {
  if (!holds) throw std::runtime_error(message);
}

// Returns the pointer that `work` returns and the caller frees; null if it throws, with the message in `error`.
template <class Work>
auto answer(char* error, Work&& work) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    std::snprintf(error, kMessageSize, "not enough memory");
  } catch (const std::exception& failure) {
    std::snprintf(error, kMessageSize, "%s", failure.what());
  }
  return nullptr;
}

}  // namespace seamseg
