// What the tests call themselves: the order of the threads in the launches to come.
#include "cuda_runtime.h"

extern "C" __attribute__((visibility("default"))) void seamseg_emulation_seed(uint64_t seed) { the_machine.seed = seed; }
