"""Compare the figures of README and docs with the JSON files of benchmarks/results; `--write` corrects the pages.

    python benchmarks/figures.py [--write]

A figure is a piece of text of a page in which `{}` stands for a number; the number must be the value of the file,
rounded to the digits that the page shows. Line breaks do not matter. Needs no torch.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PERFORMANCE = "docs/reference/performance.md"
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
        _bodies,
        _memory,
        _cases,
        _queries,
        _pairs,
        _huge_photo,
        _training,
        _large_runs,
        _exported,
        _int8,
        _waiting,
        _sharing,
        _serving,
        _demo,
    ):
        made += list(part())
    return [*made, *_ablation()]


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
    int8 = load("exported")["wall"]["openvino-int8"]
    sizes, training = ("512x767", "1024x1534"), "training step, cityscapes_r50, 512x1024"
    starts = {"| inference, vistas_r50, 512x767, fp32 / bf16, from file to file": found[sizes[0]]}
    starts |= {"| the same, 1024x1534": found[sizes[1]], f"| {training}, fp32 / bf16": step}
    for start, row in starts.items():
        theirs = row["original"]
        values = (row["fp32"], row["bf16"], theirs, theirs / row["fp32"], theirs / row["bf16"])
        yield Figure("README.md", f"{start} | {{}} / {{}} s | original {{}} s | {{}} / {{}}x faster |", values)
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
    best = found["512x767"]["original"]
    text = "in OpenVINO | {} s | original (fp32, another run) {} s | {}x faster |"
    yield Figure("README.md", text, (int8, best, best / int8))
    pool = facts["avg_pool2d of 64x64, percent of the original's time"]
    behind = facts["original / ours with separated pooling and tuned malloc"]
    values = (*(pool[size] for size in sizes), *behind["fp32"], *behind["bf16"])
    text = "{} % (512) to {} % (1024) of the original's time"
    yield Figure(PERFORMANCE, text, values[:2])
    yield Figure("README.md", text, values[:2])
    text = "{} to {} times as long as seamseg in fp32 and {} to {} times as long as in bf16"
    yield Figure(PERFORMANCE, text, values[2:])
    yield Figure("README.md", text, values[2:])
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
    for row, precision in zip(load("semantic_network")["rows"], ("fp32", "bf16"), strict=True):
        text = f"| semantic network vistas_wrn38, 512x682, {precision} | `semantic_network.py` | {{}} s |"
        values = (row["ours_ms"] / 1e3, row["peer_ms"] / 1e3, row["ratio"])
        yield Figure(PERFORMANCE, f"{text} written plainly {{}} s | {{}} |", values)


def _bodies() -> Iterator[Figure]:
    for name, row in load("backbones")["rows"].items():
        body, plain = row["body in-place MiB"], row["body plain MiB"]
        step = row["step in-place MiB"] / row["step plain MiB"], row["step in-place s"] / row["step plain s"]
        yield Figure(INPLACE_ABN, f"| {name} | {{}} | {{}} | {{}} | {{}} | {{}} |", (body, plain, body / plain, *step))


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
    kept = ours["kept_mib"], plain["kept_mib"]
    text = "ResNet-50 body | {} MiB | BatchNorm + LeakyReLU {} MiB | {}x memory |"
    yield Figure("README.md", text, (*kept, kept[0] / kept[1]))


CASES = {
    "NMS of 1000 boxes, nothing suppressed": ("boxes", "nms 1000, apart", "torchvision", "ms"),
    "NMS of 6000 boxes": ("boxes", "nms 6000", "torchvision", "ms"),
    "NMS of 12000 boxes": ("boxes", "nms 12000", "torchvision", "ms"),
    "NMS of 6500 boxes of 65 classes": ("boxes", "nms 6500 of 65 classes", "torchvision batched_nms", "ms"),
    "ROI features, 512 boxes, 4 levels, forward": ("roi", "roi_features channels last forward", "torchvision", "ms"),
    "ROI features, backward": ("roi", "roi_features channels last backward", "torchvision", "ms"),
    "class map, 65 classes, 1024x2048": ("semantic", "argmax 65 classes, scene, channels last", "interpolate", "ms"),
    "the same on noise": ("semantic", "argmax 65 classes, noise, channels last", "interpolate", "ms"),
    "semantic loss with backward, 19 classes": ("semantic", "loss 19 classes, with backward", "interpolate", "ms"),
    "semantic head, 256x512x256, forward": ("pooling", "semantic head 256 x 256 x 512, contiguous", "as", "s"),
    "semantic head, channels last": ("pooling", "semantic head 256 x 256 x 512, channels last", "as", "s"),
    "100 masks pasted at 1024x2048": ("fusion", "paste_masks_into 100 masks", "grid_sample", "ms"),
    "training step": ("abn", "ResNet-50 body 256x512 NHWC", "BatchNorm", "ms"),
    "Cityscapes pixel level, 20 frames": ("cityscapes", "pixel level, 1 threads", "cityscapesscripts", "s"),
    "Cityscapes instance level": ("cityscapes", "instance level, 1 threads", "cityscapesscripts", "s"),
    "Cityscapes panoptic": ("cityscapes", "panoptic, 1 threads", "cityscapesscripts", "s"),
    "fusion, at the size of the image": ("exports", "fusion", "numpy", "ms"),
    "overlay": ("exports", "overlay", "numpy", "ms"),
    "overlay, to JPEG": ("exports", "overlay to JPEG", "numpy", "ms"),
    "panoptic PNG": ("exports", "panoptic PNG", "numpy", "ms"),
    "fusion, formats coco and overlay": ("exports", "fusion, coco and overlay", "numpy", "ms"),
    "100 masks of 1024x2048 to PNG": ("exports", "masks of 100 detections", "Pillow", "ms"),
    "converting 3 Cityscapes frames": ("prepare", "cityscapes, 3 frames, 1 worker", "one by one", "ms"),
    "converting 3 Vistas frames": ("prepare", "vistas, 3 frames, 1 worker", "one by one", "ms"),
}
"""Rows of tables: the file, the case, the beginning of the name of the peer, the unit."""


def _cases() -> Iterator[Figure]:
    for words, (name, case, peer, unit) in CASES.items():
        (row,) = (row for row in load(name)["rows"] if row["case"] == case and row["peer"].startswith(peer))
        text = f"| {words} | `{name}.py` | {{}} {unit} | {row['peer'].removesuffix('_')} {{}} {unit} | {{}} |"
        page, factor = INPLACE_ABN if name == "abn" else PERFORMANCE, 1e-3 if unit == "s" else 1.0
        yield Figure(page, text, (factor * row["ours_ms"], factor * row["peer_ms"], row["ratio"]))


def _queries() -> Iterator[Figure]:
    for size, words in (("1024x2048", "2 megapixels"), ("3000x4000", "12 megapixels")):
        rows = load("merge_queries")["rows"][size]
        ours, peer = rows["C library"], rows["transformers"]
        text = f"| merging 40 masks of queries at {words} | `merge_queries.py` | {{}} s | transformers {{}} s | {{}} |"
        yield Figure(PERFORMANCE, text, (ours["seconds"], peer["seconds"], peer["seconds"] / ours["seconds"]))
        text = "| the same, peak memory | `merge_queries.py` | {} MB | transformers {} MB | {} |"
        if size == "3000x4000":
            memory = ours["peak_mb"], peer["peak_mb"]
            yield Figure(PERFORMANCE, text, (*memory, memory[0] / memory[1]))
            text = "12 megapixels takes {} s and {} MB, that of the processor of transformers {} s and {} MB"
            both = ours["seconds"], memory[0], peer["seconds"], memory[1]
            yield Figure("docs/how-to/foreign_networks.md", text, both)


def _pairs() -> Iterator[Figure]:
    rows = [row for row in load("histogram")["rows"] if row["case"].startswith("panoptic quality")]
    ours, ratios = ([row[key] for row in rows] for key in ("ours_ms", "ratio"))
    peer = statistics.median(row["peer_ms"] for row in rows)
    text = "from memory | `histogram.py` | {} to {} ms | np.unique {} ms | {} to {} |"
    yield Figure(PERFORMANCE, text, (min(ours), max(ours), peer, min(ratios), max(ratios)))
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
    yield Figure(PERFORMANCE, text, tuple(ratio[f"item, {name}"] for name in LOADING))


def _huge_photo() -> Iterator[Figure]:
    rows = load("huge_photo")["rows"]
    for before, now in zip(rows[::2], rows[1::2]):
        text = f"| {now['formats']} | `huge_photo.py` | {{}} GiB | before {{}} GiB | {{}} |"
        yield Figure(PERFORMANCE, text, (now["peak"], before["peak"], now["peak"] / before["peak"]))
    text = "Both formats together take {} s of CPU time, before {} s."
    yield Figure(PERFORMANCE, text, (rows[-1]["cpu"], rows[-2]["cpu"]))


LOADING = ("default", "crop 512 x 1024", "crop, device, fast_decode")


def _training() -> Iterator[Figure]:
    rows = load("checkpointing")["rows"]
    all_kept, checkpointed = (rows[name]["kept MiB"] for name in ("everything kept", "body + pyramid"))
    text = "with `checkpoint_body`, fp32 | `checkpointing.py` | {} -> {} MiB ({}) |"
    kept = all_kept, checkpointed, checkpointed / all_kept
    yield Figure(PERFORMANCE, text, kept)
    text = "on one 512 x 1024 image in fp32 keeps {} MiB, with the key **{} MiB** ({})"
    yield Figure("docs/how-to/train.md", text, kept)
    table = load("scaling")
    text = "one, gloo | `scaling.py --rounds 3 --side 256` | {} / {} s: efficiency {} |"
    efficiency = table["alone"] / table["together"]
    yield Figure(PERFORMANCE, text, (table["together"], table["alone"], efficiency))
    yield Figure("docs/how-to/train_distributed.md", "with an efficiency of {} (", (efficiency,))
    table = load("malloc")
    text = "at 512x1024 {} times as fast on two cores (`malloc.py`: {} s with the defaults, {} s with these settings)"
    yield Figure(PERFORMANCE, text, (table["ratio"], table["default"], table["kept"]))


def _large_runs() -> Iterator[Figure]:
    table, page = load("original")["inference vistas_r50"], "docs/how-to/predict_at_scale.md"
    seconds = hours = 0.0
    for size, row in table.items():
        for precision in ("fp32", "bf16"):
            seconds = row[precision]
            hours = 1e6 * seconds / 3600
            text = f"| {size.replace('x', ' x ')} | {precision} | {{}} | {{}} |{' {} h |' * 3}"
            yield Figure(page, text, (seconds, 3600 / seconds, hours, hours / 100, hours / 1000))


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
    names |= {"onnx int8": "ONNX int8, calibrated", "onnx qat": "ONNX int8, trained for an epoch"}
    for side, words in names.items():
        scores = dict(re.findall(r"(PQ|mIoU|box AP|mask AP) ([\d.]+)", table[side]["scores"]))
        values = *(float(scores[key]) for key in ("PQ", "mIoU", "box AP", "mask AP")), table[side]["CPU seconds"]
        yield Figure(page, f"| {words} |{' {} |' * 6}", (*values, table[side]["speedup"]))


def _waiting() -> Iterator[Figure]:
    rows = load("waiting_threads")["rows"]
    cell = {(row["work"], row["neighbours"], row["setting"]): (row["seconds"], row["ratio"]) for row in rows}
    # both kinds of small input are compared with one thread that runs it
    one = cell["thread", "none", "GOMP_SPINCOUNT=300000"][0]
    cell |= {key: (seconds, seconds / one) for key, (seconds, _) in cell.items() if key[0] == "threads"}
    settings = ("GOMP_SPINCOUNT=3000", "OMP_WAIT_POLICY=active,GOMP_SPINCOUNT=3000", "OMP_WAIT_POLICY=passive")
    works = {"training": "training", "predict": "prediction", "thread": "small input"}
    for work, words in {**works, "threads": "small input, two threads"}.items():
        for neighbours, beside in {
            "none": "alone",
            "niced": "beside one niced loop",
            "all": "beside two loops",
        }.items():
            first, ratio = cell[work, neighbours, "GOMP_SPINCOUNT=300000"]
            plain = (first,) if neighbours == "none" and work != "threads" else (first, ratio)
            rest = [cell[work, neighbours, setting] for setting in (*settings, "OMP_NUM_THREADS=1")]
            text = f"| {words}, {beside} | {{}}{' ({})' if len(plain) == 2 else ''} |{' {} ({}) |' * 4}"
            yield Figure(PERFORMANCE, text, (*plain, *(number for pair in rest for number in pair)))


def _sharing() -> Iterator[Figure]:
    found = load("throughput")
    names = {
        "network alone": "the network alone, two threads",
        "defaults": "`predict`, by default",
        "one at a time, two decoders": "one image at a time, two decoders",
        "one at a time, no decoder": "one image at a time, `--workers 0`",
    }
    for side, words in names.items():
        row = found["folder"][side]
        values = (row["cpu ms"], row["of the network, cpu"], row["of the network, wall"])
        yield Figure(PERFORMANCE, f"| {words} | {{}} ms | {{}} | {{}} |", values)
    two, eight = found["writers"]["2"], found["estimate of 8 writers"]
    text = "take {} ms of CPU time, and two threads wrote {} images/s, {} times as many as one"
    text += "; eight, on 16 cores, would write {}."
    yield Figure(PERFORMANCE, text, (two["cpu ms"], two["images/s"], 2 * two["efficiency"], eight))


def _demo() -> Iterator[Figure]:
    before, now = (
        {key: statistics.median(run[key] for run in runs) for key in ("wall", "pq")}
        for runs in load("demo")["sides"].values()
    )
    text = "| `demo.py` | {} s, PQ {} -> **{} s**, PQ {} ({} times as fast) |"
    values = (before["wall"], 100 * before["pq"], now["wall"], 100 * now["pq"], before["wall"] / now["wall"])
    yield Figure(PERFORMANCE, text, values)


def _serving() -> Iterator[Figure]:
    page = "docs/how-to/serve.md"
    cases = {
        "serving_demo": ("network input 128x256: {} calls/s", "ms", 1.0),
        "serving": ("vistas_r50, 512x767: {} calls/s", "s", 1e-3),
    }
    for name, (words, unit, factor) in cases.items():
        rows = {(row["form"], row["clients"]): row for row in load(name)}
        for batch, start in ((1, f"{words} | 1"), (4, "| 4")):
            found = [rows[f"batch {batch}", clients] for clients in (1, 4, 16)]
            values = tuple(n for row in found for n in (row["ratio"], row["p99 ms"] * factor))
            calls = (rows["calls", 1]["requests/s"],) if batch == 1 else ()
            # the rows of larger batches begin alike but for the unit
            yield Figure(page, start + f" | {{}} ({{}} {unit})" * 3 + " |", (*calls, *values))


def _ablation() -> Iterator[Figure]:
    page, table = "docs/how-to/recipes.md", load("ablation")
    means = {name: {key: sum(v) / len(v) for key, v in row.items()} for name, row in table["rows"].items()}
    names = {
        "scratch": ("scratch", None),
        "box_convs": ("four convolutions in the box branch, group norm", "scratch"),
        "mask_points": ("masks refined at points (PointRend)", "scratch"),
        "copy_paste": ("copy-paste, probability 0.5", "pretrained"),
        "crop": ("crop_size = (128, 192)", "pretrained"),
        "cabb": ("crop, crop-aware box loss", "crop"),
        "large_scale_jitter": ("crop, large-scale jitter (0.5, 2)", "crop"),
        "instance_scale_uniform": ("crop, the same around instances", "crop"),
    }
    for name, (words, against) in names.items():
        row, scores = means[name], table["rows"][name]["PQ"]
        values = [row["PQ"], min(scores), max(scores), row["PQ_things"], row["PQ_stuff"]]
        text = f"| {words} | {{}} | {{}} - {{}} | {{}} | {{}} |"
        if against is not None:
            text += f" {against} | {{}} | {{}} |"
            values += [row["PQ"] - means[against]["PQ"], row["CPU seconds"] / means[against]["CPU seconds"]]
        yield Figure(page, text, tuple(values))
    row, scores, model = means["pretrained"], table["rows"]["pretrained"]["PQ"], table["model"]["PQ"]
    values = [row["PQ"], min(scores), max(scores), row["PQ_things"], row["PQ_stuff"], model, row["PQ"] - model]
    yield Figure(page, "| pretrained | {} | {} - {} | {} | {} | the model, {} | {} |", tuple(values))


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
