"""Numerical building blocks in plain torch: boxes, NMS, ROI sampling, in-place ABN, pooling, upsampling, pasting.

Every function runs on any device. Nothing here knows about networks, data or files.
"""

OPERATORS = (
    "nms",
    "roi_sampling",
    "inplace_abn",
    "box_filter_pool",
    "upsample_argmax",
    "upsample_ohem_loss",
    "paste_mask",
    "extract_boxes",
    "crowd_overlap",
    "joint_histogram",
)
"""The operators worth a kernel of their own."""


def implementations() -> dict[str, str]:
    """What serves each operator; no kernel is compiled yet, so it is plain torch for all of them."""
    return dict.fromkeys(OPERATORS, "plain torch")
