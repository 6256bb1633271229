"""Compare the golden network on a device with the stored numbers of the original, in fp32, bf16 and fp16.

    python tests/gpu_checks/golden.py --device cuda --json golden.json
    python tests/gpu_checks/golden.py --device cpu flower

The seeded weights and images of the tests (`tests/golden`), on the folded network that predicts. For each precision:
the largest error of the pyramid relative to its range, the part of the original's detections that are found (same
class, IoU of the boxes from 0.9 on), the part of the pixels with the same class and with the same class on the fused
map, and the panoptic quality of the fused map with the original's as ground truth. TF32 is float32 with cuDNN's TF32,
torch's default on a GPU. Seeded weights amplify rounding far more than trained ones do: half precision is for
comparing devices. Exit code 1 if fp32 differs by more than the tests allow.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from support.golden_files import tensor
from support.networks import CITYSCAPES, NUM_STUFF, NUM_THING, golden_image, load_golden

from seamseg.config import load_config
from seamseg.fusion import fuse
from seamseg.maps.evaluation import PanopticEvaluator
from seamseg.maps.panoptic_map import ClassInfo, SegmentInfo
from seamseg.models.build import build_network
from seamseg.models.folding import for_inference
from seamseg.ops.boxes import box_iou
from seamseg.structures import PackedSequence

IMAGES = {"flower": "single0", "china": "single1", "astronaut": "single2"}
PRECISIONS = {"fp32": "fp32", "fp32 with TF32": "fp32", "bf16": "bf16", "fp16": "fp16"}


@dataclass
class Distance:
    """From the stored numbers, over the images: the worst error, the lowest parts, one PQ."""

    precision: str
    pyramid: float = 0.0
    detections: float = 1.0
    semantic: float = 1.0
    fused: float = 1.0
    PQ: float = 0.0

    def exact(self):
        """Return whether differences are within the tolerance of the tests for fp32 on another device."""
        return self.pyramid < 1e-3 and min(self.semantic, self.fused) > 0.999 and self.detections > 0.97


def stored(case, name):
    return tensor("infer_cityscapes", f"cityscapes/{case}/{name}")


@torch.no_grad()
def distance(precision, net, device, images):
    config = load_config(CITYSCAPES)
    classes = [ClassInfo(str(i), i, i >= NUM_STUFF) for i in range(NUM_STUFF + NUM_THING)]
    found, evaluator = Distance(precision), PanopticEvaluator(classes)
    for image in images:
        case = IMAGES[image]
        batch = PackedSequence([golden_image(image, config).to(device)])
        for i, x in enumerate(net.encode(batch).levels):
            values = x.float().contiguous().flatten()[stored(case, f"fpn{i}_idx").to(device)].cpu()
            error = (values - stored(case, f"fpn{i}_val")).abs().max() / stored(case, f"fpn{i}_stats")[2]
            found.pyramid = max(found.pyramid, float(error))
        prediction = net.predict(batch)[0].on_cpu()
        same = torch.from_numpy(prediction.classes)[None] == stored(case, "cls_pred_0")[:, None]
        overlaps = box_iou(stored(case, "bbx_pred_0"), torch.from_numpy(prediction.boxes)) * same
        found.detections = min(found.detections, float((overlaps.amax(1) >= 0.9).double().mean()))
        agree = torch.from_numpy(prediction.semantic).long() == stored(case, "sem_pred_0").long()
        found.semantic = min(found.semantic, float(agree.double().mean()))
        fused = fuse(prediction, NUM_STUFF, 0.5, 0.5, 4096)
        ids, categories = stored(case, "pan_msk_0").long(), stored(case, "pan_cat_0").tolist()
        ours = torch.tensor(fused.categories)[torch.from_numpy(fused.ids).long()]
        agree = ours == torch.tensor(categories)[ids]
        found.fused = min(found.fused, float(agree.double().mean()))
        evaluator.add(ids.numpy(), segments(categories), fused.ids.astype(np.int64), segments(fused.categories))
    found.PQ = float(evaluator.scores().PQ)
    return found


def segments(categories):
    """List the segments of a fused map, whose first category is void."""
    return [SegmentInfo(i, category) for i, category in enumerate(categories) if i > 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", default=list(IMAGES), help=f"among {', '.join(IMAGES)} (default: all)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.images) - set(IMAGES):
        parser.error(f"no golden image {', '.join(sorted(unknown))}: choose among {', '.join(IMAGES)}")
    device = torch.device(arguments.device)
    # TF32 and fp16 are a GPU's
    names = list(PRECISIONS) if device.type == "cuda" else ["fp32", "bf16"]
    net = load_golden(build_network(load_config(CITYSCAPES), NUM_STUFF, NUM_THING)).eval()
    rows = []
    print(f"{'precision':<16}{'pyramid':>10}{'detections':>12}{'semantic':>10}{'fused':>10}{'PQ':>8}")
    for name in names:
        torch.backends.cudnn.allow_tf32 = "TF32" in name
        row = distance(name, for_inference(net, device, PRECISIONS[name]), device, arguments.images)
        rows.append(row)
        print(
            f"{name:<16}{row.pyramid:>10.1e}{row.detections:>12.4f}{row.semantic:>10.5f}{row.fused:>10.5f}"
            f"{row.PQ:>8.4f}"
        )
        # the next one may fail
        exact = rows[0].exact()
        if arguments.json:
            summary = {"device": arguments.device, "images": arguments.images, "fp32 agrees": exact}
            Path(arguments.json).write_text(json.dumps({**summary, "rows": [asdict(row) for row in rows]}, indent=1))
    print("fp32 agrees with the original" if exact else "fp32 DIFFERS from the original")
    return int(not exact)


if __name__ == "__main__":
    sys.exit(main())
