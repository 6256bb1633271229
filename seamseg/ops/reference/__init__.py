"""The operators in plain torch: what runs without a kernel, and what the kernels are tested against."""
