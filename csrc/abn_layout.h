// Layout of a tensor `N x C x ...` in the ABN kernels.
#pragma once

#include "types.h"

namespace seamseg::abn {

// Either rows of C channels (channels last, or no further dimensions) or planes of `inner` pixels of one channel.
struct Layout {
  int64_t outer, channels, inner;
  bool rows;
};

}  // namespace seamseg::abn
