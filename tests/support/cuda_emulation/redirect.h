// Put between common.cuh and a host file of `csrc/cuda`: its launches go to the emulator, its guards do nothing, and its
// operators are registered for CPU tensors in a library of their own, `seamseg_emulated`.
#pragma once

#include <tuple>

#undef SEAMSEG_LAUNCH
#define SEAMSEG_LAUNCH(kernel, blocks, threads, stream, ...)                              \
  do {                                                                                    \
    static_cast<void>(stream);                                                            \
    const auto seamseg_arguments = std::make_tuple(__VA_ARGS__);                          \
    the_machine.launch(#kernel, (blocks), (threads), [&] {                                \
      std::apply([](auto... argument) { (kernel)(argument...); }, seamseg_arguments);     \
    });                                                                                   \
    ::seamseg::check_launch(#kernel);                                                     \
  } while (0)

namespace emulation {
struct NoGuard {
  explicit NoGuard(int32_t) {}
};
}  // namespace emulation
namespace seamseg {
namespace {
using NoGuard = emulation::NoGuard;
}
}  // namespace seamseg
#define DeviceGuard NoGuard
#define is_cuda is_cpu

#undef STABLE_TORCH_LIBRARY_IMPL
#define STABLE_TORCH_LIBRARY_IMPL(ns, k, m) _STABLE_TORCH_LIBRARY_IMPL(seamseg_emulated, CPU, m, C10_UID)
