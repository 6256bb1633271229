// What the tests call themselves: the order of the threads in the launches to come.
#include "cuda_runtime.h"

extern "C" __attribute__((visibility("default"))) void seamseg_emulation_seed(uint64_t seed) { the_machine.seed = seed; }

asm(R"(
.text
.globl seamseg_switch
.hidden seamseg_switch
seamseg_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
