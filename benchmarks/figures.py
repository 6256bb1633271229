"""Compare the figures of README and docs with the JSON files of benchmarks/results; `--write` corrects the pages.

    python benchmarks/figures.py [--write]

A figure is a piece of text of a page in which `{}` stands for a number; the number must be the value of the file,
rounded to the digits that the page shows. Line breaks do not matter. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PERFORMANCE = "docs/reference/performance.md"
FASTER = "docs/how-to/faster_inference.md"
INPLACE_ABN = "docs/design/inplace_abn.md"
PAGES = ("README.md", PERFORMANCE, INPLACE_ABN)
"""Pages of which each table row with a figure is compared."""


@dataclass(frozen=True)
class Figure:
    """Numbers of a page.

    Attributes
    ----------
    page : path from the root of the repository
    text : occurs once on the page, with `{}` in the place of each number
    values : one a number
    """

    page: str
    text: str
    values: tuple[float, ...]

    @property
    def pattern(self) -> re.Pattern[str]:
        """The text with a group for each number, and any white space in the place of a space."""
        words = (re.escape(word).replace(r"\{\}", r"([+-]?\d+(?:\.\d+)?)") for word in self.text.split())
        return re.compile(r"(?<![\w.])" + r"\s+".join(words))

    def corrected(self, text: str) -> tuple[str, list[str]]:
        """Return the page with the right numbers, and a line for each wrong one."""
        found = list(self.pattern.finditer(text))
        if len(found) != 1:
            return text, [f"{self.page}: {self.text!r} occurs {len(found)} times, expected one"]
        wrong, spans = [], []
        for group, value in enumerate(self.values, start=1):
            shown = found[0][group]
            digits = len(shown.partition(".")[2])
            right = f"{value:{'+' if shown.startswith('+') else ''}.{digits}f}"
            # a value half-way between two roundings may be shown as either
            if abs(float(shown) - value) > 0.5 * 10**-digits * (1 + 1e-6):
                wrong.append(f"{self.page}: {found[0][0].split(' | ')[0]!r}: {shown} should be {right}")
                spans.append((found[0].span(group), right))
        for (start, stop), right in reversed(spans):
            text = text[:start] + right + text[stop:]
        return text, wrong


def load(name: str) -> Any:
    """Return the content of a file of benchmarks/results."""
    return json.loads((RESULTS / f"{name}_cpu2.json").read_text())


def figures() -> list[Figure]:
    """Return all figures."""
    made = []
    for part in (
        _original,
        _plain,
        _inference,
        _proposals,
        _memory,
        _models,
        _kernels,
        _pairs,
        _exported,
        _int8,
        _demo,
        _calls,
        _ray,
    ):
        made += list(part())
    return made


def pages(wanted: list[Figure]) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield each page with its corrected text, and a line for each wrong number."""
    for page in sorted({figure.page for figure in wanted}):
        text, wrong = (ROOT / page).read_text(encoding="utf-8"), []
        for figure in wanted:
            if figure.page == page:
                text, lines = figure.corrected(text)
                wrong += lines
        yield ROOT / page, text, wrong


def _original() -> Iterator[Figure]:
    facts = load("original")
    found, step = facts["inference vistas_r50"], facts["training step cityscapes_r50 512x1024"]
    memory, network = facts["training peak RSS GB"], load("network")["rows"]
    sizes, training = ("512x767", "1024x1534"), "training step, cityscapes_r50, 512x1024"
    theirs = step["original"]
    values = (step["fp32"], step["bf16"], theirs, theirs / step["fp32"], theirs / step["bf16"])
    text = f"| {training}, fp32 / bf16 | {{}} / {{}} s | original {{}} s | {{}} / {{}}x faster |"
    yield Figure("README.md", text, values)
    for precision in ("fp32", "bf16"):
        for start, row in {**{f"file to file, {size}": found[size] for size in sizes}, training: step}.items():
            ours, theirs = row[precision], row["original"]
            text = f"| {start}, {precision} | {{}} s | original {{}} s | {{}} |"
            yield Figure(PERFORMANCE, text, (ours, theirs, theirs / ours))
        text = f"| its peak RSS, {precision} | {{}} GB | original {{}} to {{}} GB | {{}} |"
        values = (memory[precision], *memory["original"], memory[f"ratio {precision}"])
        yield Figure(PERFORMANCE, text, values)
        kept, whole = network[precision]["kept MiB"], facts["training kept MiB"]["original"]
        text = f"| memory that it keeps for backward, {precision} | {{}} MiB | original {{}} MiB | {{}} |"
        yield Figure(PERFORMANCE, text, (kept, whole, kept / whole))
    pool = facts["avg_pool2d of 64x64, percent of the original's time"]
    behind = facts["original / ours with separated pooling and tuned malloc"]
    values = (*(pool[size] for size in sizes), *behind["fp32"], *behind["bf16"])
    text = "{} % (512) to {} % (1024) of the original's time"
    yield Figure(PERFORMANCE, text, values[:2])
    text = "{} to {} times as long as seamseg in fp32 and {} to {} times as long as in bf16"
    yield Figure(PERFORMANCE, text, values[2:])
    for start, peer, precision in (
        ("inference, vistas_r50, 512x767 and 1024x1534, fp32", "original, its average pool changed", "fp32"),
        ("the same, bf16", "the same in fp32", "bf16"),
    ):
        text = f"| {start} | {{}} and {{}} s | {peer} | {{}} to {{}}x faster |"
        yield Figure("README.md", text, (*(found[size][precision] for size in sizes), *behind[precision]))
    limits = facts["limits"]
    peak, reached = (tuple(limits[key].values()) for key in ("peak per core, GFLOP/s", "percent of the peak"))
    text = "convolutions {} GFLOP/s in fp32 and {} in bf16, int8 matrix products {}"
    yield Figure(PERFORMANCE, text, peak)
    text = "Inference reaches {} % of the peak in fp32 (more than 100 because of Winograd's algorithm), {} % in bf16"
    text += " and {} % in int8, a training step {} % in fp32 and {} % in bf16, and a step of"
    text += " the wider network that the demo had {} % of two cores"
    yield Figure(PERFORMANCE, text, reached)


def _plain() -> Iterator[Figure]:
    """Compare the CPU seconds of both forms of the original's algorithm."""
    table, steps = load("inference"), load("network")["rows"]
    names = ("fp32", "plain", "separated")
    for side, size in (("512", "512x767"), ("1024", "1024x1534")):
        yield _row(f"| file to file, {size} | `inference.py` |", [table[side][name]["cpu"] for name in names])
    for words, key in (("training step, 512x1024", "cpu"), ("its kept memory, MiB", "kept MiB")):
        yield _row(f"| {words} | `network.py` |", [steps[name][key] for name in names])


def _row(start: str, values: list[float]) -> Figure:
    """Return the row of ours and, each with its ratio to ours, of the peers."""
    ours, *theirs = values
    numbers = [number for value in theirs for number in (value, value / ours)]
    return Figure(PERFORMANCE, f"{start} {{}} |{' {} ({}) |' * len(theirs)}", (ours, *numbers))


def _inference() -> Iterator[Figure]:
    table = load("inference")
    for side, size in (("512", "512x767"), ("1024", "1024x1534")):
        values = (*(table[side][name]["wall"] for name in ("fp32", "maskrcnn")), table[side]["maskrcnn/fp32 wall"])
        text = f"| file to file, {size}, fp32 | `inference.py` | {{}} s | Mask R-CNN {{}} s | {{}} |"
        yield Figure(PERFORMANCE, text, values)
        if side == "512":
            peer = "torchvision Mask R-CNN (smaller, things only)"
            text = f"| inference, 512x767, fp32 | {{}} s | {peer} {{}} s | {{}}x faster |"
            yield Figure("README.md", text, values)


def _proposals() -> Iterator[Figure]:
    table = load("proposals")
    text = "{} times the CPU time at 512x767, {} at 1024x1534"
    yield Figure(FASTER, text, tuple(table[side]["fp32/300/fp32 cpu"] for side in ("512", "1024")))


def _memory() -> Iterator[Figure]:
    rows = load("memory")["rows"]
    ours, plain, separate = (
        rows[name] for name in ("in-place ABN", "BatchNorm + LeakyReLU", "in-place ABN, separate sum")
    )
    for words, key, peer, peer_words in (
        ("memory kept for backward", "kept_mib", plain, "BatchNorm + LeakyReLU"),
        ("the same", "kept_mib", separate, "the original's layout"),
        ("peak of the step", "peak_mib", plain, "BatchNorm + LeakyReLU"),
    ):
        text = f"| {words} | `memory.py` | {{}} MiB | {peer_words} {{}} MiB | {{}} |"
        yield Figure(INPLACE_ABN, text, (ours[key], peer[key], ours[key] / peer[key]))
    steps = load("training_memory")["rows"]
    for words, side in (("in bf16", "eager"), ("the same with `checkpoint_body`", "eager_checkpointed")):
        text = f"| peak of a training step, 1920x2304, {words} | {{}} MiB | plain, fp32 {{}} MiB | {{}} | {{}} |"
        peaks, flops = ([steps[name][key] for name in (side, "plain")] for key in ("peak_mib", "tflop"))
        yield Figure(PERFORMANCE, text, (*peaks, peaks[0] / peaks[1], flops[0] / flops[1]))
    kept = ours["kept_mib"], plain["kept_mib"]
    text = "ResNet-50 body | {} MiB | BatchNorm + LeakyReLU {} MiB | {}x memory |"
    yield Figure("README.md", text, (*kept, kept[0] / kept[1]))


KERNELS = {
    "NMS of 1000 boxes, nothing suppressed": ("nms 1000, apart", "ms"),
    "NMS of 6000 boxes": ("nms 6000", "ms"),
    "NMS of 12000 boxes": ("nms 12000", "ms"),
    "NMS of 6500 boxes of 65 classes": ("nms 6500 of 65 classes", "ms"),
    "ROI features, 512 boxes, 4 levels, forward": ("roi_features forward", "ms"),
    "ROI features, backward": ("roi_features backward", "ms"),
    "class map, 65 classes, 1024x2048": ("argmax 65 classes, scene", "ms"),
    "the same on noise": ("argmax 65 classes, noise", "ms"),
    "semantic loss with backward, 19 classes": ("loss 19 classes, with backward", "ms"),
    "semantic head, 256x512x256, forward": ("semantic head, contiguous", "s"),
    "semantic head, channels last": ("semantic head, channels last", "s"),
}
"""Rows of the table: the case and the unit."""


def _kernels() -> Iterator[Figure]:
    rows = {row["case"]: row for row in load("kernels")["rows"]}
    (paste,) = (r for r in load("fusion")["rows"] if r["case"] == "paste_masks_into 100 masks" and "grid" in r["peer"])
    made = [(words, "kernels", unit, rows[case]) for words, (case, unit) in KERNELS.items()]
    for words, script, unit, row in [*made, ("100 masks pasted at 1024x2048", "fusion", "ms", paste)]:
        text = f"| {words} | `{script}.py` | {{}} {unit} | {row['peer']} {{}} {unit} | {{}} |"
        factor = 1e-3 if unit == "s" else 1.0
        yield Figure(PERFORMANCE, text, (factor * row["ours_ms"], factor * row["peer_ms"], row["ratio"]))


def _models() -> Iterator[Figure]:
    """Compare time and memory in the table of models."""
    names = {
        "vistas_r50": "`seamseg_r50_vistas.zip` | Vistas | PQ 37.99",
        "vistas_wrn38": "`wide_resnet38_deeplab_vistas.pth.tar` (semantic) | Vistas | mIoU 53.42 (test set)",
        "maskrcnn_resnet50_fpn_v2": "`torchvision:maskrcnn_resnet50_fpn_v2` (instances) | COCO | mask AP 41.8",
        "toy_city_r18": "`runs/demo`, made by `seamseg demo` | synthetic city | PQ 61, measured",
    }
    for side, row in load("models")["rows"].items():
        yield Figure("README.md", f"| {names[side]} | {{}} s, {{}} GB |", (row["s"], row["peak GB"]))


def _pairs() -> Iterator[Figure]:
    sides = load("panoptic_quality")["rows"]
    mine = sides["seamseg"]
    start = "PQ of 500 pairs of 2-megapixel PNG"
    first, files = f"| {start}s, 2 workers, per pair", "`panoptic_quality.py`"
    for peer_name, words, memory in (
        ("panopticapi", first, "| peak memory, largest process"),
        ("hotcoco", "| the same", "| the same"),
    ):
        row = sides[peer_name]
        text = f"{words} | {files} | {{}} ms | {peer_name} {{}} ms | {{}} |"
        yield Figure(PERFORMANCE, text, (mine["ms a pair"], row["ms a pair"], row["ratio"]))
        text = f"{memory} | {files} | {{}} MB | {peer_name} {{}} MB | {{}} |"
        sizes = mine["largest MB"], row["largest MB"]
        yield Figure(PERFORMANCE, text, (*sizes, sizes[0] / sizes[1]))
        if peer_name == "panopticapi":
            text = f"| {start} files | {{}} ms per pair | panopticapi {{}} ms | {{}}x faster |"
            yield Figure("README.md", text, (mine["ms a pair"], row["ms a pair"], row["ratio"]))
    ratio = {row["case"]: row["ratio"] for row in load("loading")["rows"]}
    text = "is {} times as fast as plain Pillow + float32 by default, {} times with a crop, and {} times with crop,"
    yield Figure(PERFORMANCE, text, tuple(ratio[name] for name in LOADING))


LOADING = ("default", "crop 512 x 1024", "crop, device, fast_decode")


def _exported() -> Iterator[Figure]:
    page, wall = "docs/how-to/int8.md", load("exported")["wall"]
    original = load("original")["inference vistas_r50"]["512x767"]["original"]
    yield Figure(page, "The original takes {} s", (original,))
    names = {"fp32": "PyTorch, fp32", "bf16": "PyTorch, bf16", "pt2": "package, fp32", "onnx": "ONNX Runtime, fp32"}
    names |= {"openvino": "OpenVINO, fp32", "onnx-int8": "ONNX Runtime, int8", "openvino-int8": "OpenVINO, int8"}
    for side, words in names.items():
        yield Figure(page, f"| {words} | {{}} | {{}} |", (wall[side], original / wall[side]))


def _int8() -> Iterator[Figure]:
    page, table = "docs/how-to/int8.md", load("int8")
    names = {"fp32": "network, fp32", "bf16": "network, bf16", "onnx fp32": "ONNX fp32"}
    names |= {"onnx int8": "ONNX int8, calibrated"}
    for side, words in names.items():
        scores = dict(re.findall(r"(PQ|mIoU|box AP|mask AP) ([\d.]+)", table[side]["scores"]))
        values = *(float(scores[key]) for key in ("PQ", "mIoU", "box AP", "mask AP")), table[side]["CPU seconds"]
        yield Figure(page, f"| {words} |{' {} |' * 6}", (*values, table[side]["speedup"]))


def _demo() -> Iterator[Figure]:
    run = load("demo")["runs"]["fp32"]
    yield Figure(PERFORMANCE, "| `seamseg demo` | `demo.py fp32` | {} s, PQ {} |", (run["seconds"], 100 * run["PQ"]))


def _calls() -> Iterator[Figure]:
    text = "runs {} functions in {} files, {} of them before the image is opened"
    yield Figure("docs/design/structure.md", text, tuple(load("calls").values()))


def _ray() -> Iterator[Figure]:
    table = load("ray_data")
    text = "on two cores Ray made {} times its images per second, after {} s of start instead of {}"
    starts = (table[side]["start s"] for side in ("Ray Data", "predict"))
    yield Figure("docs/how-to/batch_engines.md", text, (table["ratio"], *starts))


def main() -> int:
    """Compare, and correct the pages if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="correct the numbers on the pages")
    arguments = parser.parse_args()
    wanted = figures()
    failed = False
    for path, text, wrong in pages(wanted):
        print("\n".join(wrong), end="\n" * bool(wrong))
        failed = failed or bool(wrong)
        if arguments.write and wrong:
            path.write_text(text, encoding="utf-8")
    if not failed:
        print(f"{len(wanted)} figures agree with benchmarks/results")
    return int(failed and not arguments.write)


if __name__ == "__main__":
    sys.exit(main())
