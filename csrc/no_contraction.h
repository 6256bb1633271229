// Included after the headers of others: from here on products are rounded before they are added, also where the
// processor could fuse the two, in loops that become vectors too. The bits are then those of plain torch and numpy.
#pragma once

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
