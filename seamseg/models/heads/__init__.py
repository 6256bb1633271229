"""RPN, ROI and semantic heads: module, targets, losses and inference."""
