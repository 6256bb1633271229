"""The operators in plain torch: used where there is no kernel, and in tests of the kernels."""
