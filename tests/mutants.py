"""Mutation testing: change one operator, number or condition at a time, and see whether the mirrored fast tests fail.

    make mutants FILES="seamseg/fusion.py seamseg/training/optim/optimizer.py" [SAMPLE=30]

Mutations are those of Cosmic Ray, made in a copy of the tree, so that nothing is lost when the run is stopped. SAMPLE
of each file are drawn, the same ones each time. Mutants that change no result are listed with a reason in
tests/equivalent_mutants.txt and do not count. The exit code is 1 if less than 95 % of the others are killed.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.txt"
GOAL = 0.95
SECONDS = 300
"""Limit of a mutant, whose loops may not end; it then counts as killed."""

TESTS = {
    "seamseg/data/transforms.py": "tests/data/test_transforms.py tests/data/test_maps.py "
    "tests/components/test_augmentation.py",
    "seamseg/contrib/deploy/network.py": "tests/contrib/deploy/test_network.py tests/contrib/deploy/test_export.py",
    "seamseg/maps/evaluation/scores.py": "tests/maps/evaluation/test_table.py",
    **dict.fromkeys(
        ("seamseg/maps/idmaps/reference.py", "seamseg/maps/idmaps/segments.py"),
        "tests/maps/idmaps/test_segments.py tests/maps/idmaps/test_upsampled.py tests/maps/idmaps/test_id_runs.py "
        "tests/maps/idmaps/test_histogram.py tests/data/test_transforms.py::test_nearest_matches_pillow",
    ),
    "seamseg/maps/evaluation/matching.py": (
        "tests/maps/evaluation/test_panoptic_quality.py tests/maps/evaluation/test_segments.py "
        "tests/maps/evaluation/test_parity_panoptic.py"
    ),
    **dict.fromkeys(
        ("seamseg/maps/evaluation/evaluator.py", "seamseg/maps/evaluation/panoptic_quality.py"),
        "tests/maps/evaluation/test_panoptic_quality.py tests/maps/evaluation/test_segments.py "
        "tests/maps/evaluation/test_table.py",
    ),
    "seamseg/maps/evaluation/segments.py": "tests/maps/evaluation/test_segments.py "
    "tests/maps/evaluation/test_panoptic_quality.py::test_void_alone_counts_nothing",
    "seamseg/maps/evaluation/confusion.py": (
        "tests/maps/evaluation/test_parity_semantic.py tests/maps/evaluation/test_segments.py"
    ),
    "seamseg/maps/images.py": "tests/data/test_images.py tests/data/test_maps.py tests/maps/prepare/test_own_masks.py "
    "tests/contrib/classification/test_data.py::test_classes_are_the_sorted_folders",
    "seamseg/maps/formats/cityscapes/labels.py": "tests/maps/prepare/test_cityscapes.py "
    "tests/contrib/foreign/test_class_lists.py",
    "seamseg/maps/pasting.py": "tests/test_fusion.py::test_detections_are_pasted_at_the_size_of_the_image "
    "tests/maps/evaluation/test_coco_ap.py tests/results/test_detections.py",
    "seamseg/results/base.py": "tests/results/test_result.py tests/results/test_detections.py",
    "seamseg/results/panoptic.py": "tests/results/test_result.py",
    "seamseg/inference/tta.py": "tests/inference/test_tta.py tests/results/test_semantic.py "
    "tests/contrib/test_maps.py::test_lengths_and_distances_at_any_size",
    "seamseg/inference/tiling.py": "tests/inference/test_tiles.py tests/inference/test_device_memory.py",
    "seamseg/ops/nms.py": "tests/ops/test_boxes.py tests/ops/test_nms.py",
    "seamseg/ops/labels.py": "tests/ops/test_labels.py tests/ops/test_contract.py::test_dispatch[extract_boxes-few] "
    "tests/ops/test_contract.py::test_dispatch[paste_masks_into-few]",
    "seamseg/models/heads/roi.py": "tests/models/heads/test_roi.py tests/models/test_training_parity.py",
    "seamseg/ops/reference/abn.py": "tests/ops/test_abn_steps.py tests/ops/test_abn.py",
    **{
        f"seamseg/ops/reference/{name}.py": f"tests/ops/test_{name}.py tests/gpu_checks/test_operators.py"
        for name in ("boxes", "labels", "pooling", "roi_sampling", "upsample", "winograd")
    },
    **dict.fromkeys(
        ("seamseg/models/panoptic.py", "seamseg/models/panoptic_inference.py"),
        "tests/models/heads/test_roi.py tests/models/heads/test_rpn.py tests/models/test_panoptic.py "
        "tests/models/test_build.py tests/results/test_detections.py "
        "tests/training/test_graphs.py tests/predicting/test_formats.py::test_each_kind_has_results_scores_and_formats",
    ),
    "seamseg/models/folding.py": "tests/models/test_folding.py tests/models/test_semantic.py",
    "seamseg/ops/abn.py": "tests/ops/test_abn.py tests/ops/test_norm.py tests/ops/test_abn_steps.py",
    "seamseg/ops/abn_steps.py": "tests/ops/test_abn_steps.py tests/ops/test_abn.py "
    "tests/ops/test_sync.py::test_a_group_of_one_process_changes_nothing",
    "seamseg/ops/fused.py": "tests/ops/test_winograd.py tests/models/test_folding.py tests/ops/test_norm.py "
    "tests/ops/test_contract.py::test_dispatch[winograd_input-few]",
    "seamseg/ops/norm.py": "tests/ops/test_norm.py tests/ops/test_abn_steps.py "
    "tests/models/heads/test_semantic.py::test_branches_of_half_precision_are_added",
    "seamseg/ops/roi_sampling.py": "tests/ops/test_roi_sampling.py "
    "tests/ops/test_contract.py::test_dispatch[roi_sampling-few] "
    "tests/ops/test_contract.py::test_dispatch[roi_sampling_backward-few]",
    "seamseg/ops/upsample.py": "tests/ops/test_upsample.py "
    "tests/ops/test_contract.py::test_dispatch[upsample_ohem_loss-few] "
    "tests/ops/test_contract.py::test_dispatch[upsample_ohem_loss_backward-few]",
    "seamseg/validation/validator.py": "tests/validation tests/components/test_metric.py tests/training/test_kinds.py",
    "seamseg/training/optim/optimizer.py": "tests/training/test_update.py tests/training/test_optimizer.py "
    "tests/components/test_optimizer.py",
    "seamseg/training/optim/schedule.py": "tests/training/test_optimizer.py",
}


def tests_of(file: str) -> list[str]:
    """Return the mirrored tests of a file: those of its name in its folder or above, else those of its folder."""
    if file in TESTS:
        return TESTS[file].split()
    folder, name = Path("tests", *Path(file).parts[1:-1]), f"test_{Path(file).stem}.py"
    named = (above / name for above in (folder, *folder.parents) if (ROOT / above / name).is_file())
    return [str(next(named, folder))]


def copy_tree() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    built = [str(path.relative_to(ROOT)) for path in (ROOT / "seamseg").glob("*.so")]
    for name in [*listed, *built, "seamseg/kernels.json"]:
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def mutations_of(file: str, sample: int) -> list[MutationSpec]:
    """Return a sample of the mutations of a file in the copy, without those of type hints."""
    session = COPY / "session.sqlite"
    session.unlink(missing_ok=True)
    text = f'[cosmic-ray]\nmodule-path = "{COPY / file}"\ntimeout = {SECONDS}.0\nexcluded-modules = []\n'
    text += 'test-command = "false"\n[cosmic-ray.distributor]\nname = "local"\n'
    (COPY / "session.toml").write_text(text)
    program = Path(sys.executable).with_name("cosmic-ray")
    subprocess.run([program, "init", COPY / "session.toml", session], check=True, stdout=subprocess.DEVNULL)
    dumped = subprocess.run([program, "dump", session], check=True, capture_output=True, text=True).stdout
    found = [MutationSpec(**json.loads(line)[0]["mutations"][0]) for line in dumped.splitlines()]
    lines = (COPY / file).read_text().splitlines()
    found = [one for one in found if not _is_hint(lines[one.start_pos[0] - 1], one)]
    found.sort(key=lambda one: (one.operator_name, one.occurrence))
    return random.Random(0).sample(found, min(sample, len(found)))


def _is_hint(line: str, one: MutationSpec) -> bool:
    """Whether a mutation is of the `|` of a type, which no test can kill."""
    return "BinaryOperator_BitOr" in one.operator_name and re.search(r"(:|->) [^=]*\|", line) is not None


def changed_lines(diff: str) -> str:
    """Return the removed and added code of a diff in one line."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return " => ".join(line[1:].strip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--python", required=True, help="interpreter with the package and pytest")
    parser.add_argument("--sample", type=int, default=30, help="mutants of each file (default: %(default)d)")
    args = parser.parse_args()
    equivalent = {line.rpartition("  # ")[0] for line in EQUIVALENT.read_text().splitlines()}
    copy_tree()
    killed = total = 0
    for file in args.files:
        command = f"{args.python} -m pytest -x -q -n 0 -p no:cacheprovider --hypothesis-profile mutants "
        command += " ".join(tests_of(file))
        if subprocess.run(command.split(), cwd=COPY, stdout=subprocess.DEVNULL).returncode != 0:
            raise SystemExit(f"{file}: its tests fail without a mutation: {command}")
        mine = of_file = 0
        for one in mutations_of(file, args.sample):
            result = mutate_and_test([one], f"env -C {COPY} PYTHONPATH={COPY} {command}", SECONDS)
            change = f"{file}: {changed_lines(result.diff or '')}"
            survives = result.test_outcome == TestOutcome.SURVIVED
            if survives and change in equivalent:
                continue
            of_file += 1
            mine += not survives
            if survives:
                print(f"survives: {change}", flush=True)
        print(f"{file}: {mine} of {of_file} mutants killed", flush=True)
        killed, total = killed + mine, total + of_file
    print(f"{killed} of {total} mutants killed ({killed / max(total, 1):.0%})")
    return int(killed < GOAL * total)


if __name__ == "__main__":
    sys.exit(main())
