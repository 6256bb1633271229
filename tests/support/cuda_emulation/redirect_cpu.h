// Before a file of `csrc/cpu`: its operators are registered in a library of their own, `seamseg_checked`.
#pragma once

#include <torch/csrc/stable/library.h>

#undef STABLE_TORCH_LIBRARY_IMPL
#define STABLE_TORCH_LIBRARY_IMPL(ns, k, m) _STABLE_TORCH_LIBRARY_IMPL(seamseg_checked, k, m, C10_UID)
