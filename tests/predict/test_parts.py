"""`--part k/n`: independent runs into one output, and the run that merges them."""

import json
import tarfile

import pytest
from PIL import Image

from seamseg.predict.manifest import header
from seamseg.predict.part import Part, parse_part
from seamseg.predict.sinks import lock as lock_module
from seamseg.predict.sinks.lock import FolderLock
from seamseg.predict.sinks.remote import ManifestParts
from seamseg.predict.sinks.store import FolderStore
from seamseg.predict.sources.base import limited, of_part
from seamseg.predict.sources.find import find_sources
from seamseg.predict.sources.share import DecoderShare
from seamseg.utils.errors import InputError, SeamsegError

CPU = ("--device", "cpu", "--workers", "0", "--quiet")
NAMES = [f"{number}" for number in range(7)]


def slurm(task, first, last, count):
    names = ("ID", "MIN", "MAX", "COUNT")
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in zip(names, (task, first, last, count))}


@pytest.mark.parametrize(
    ("text", "environment", "part"),
    [
        ("1/1", {}, Part(1, 1)),
        ("3/10", {}, Part(3, 10)),
        ("slurm", slurm(0, 0, 99, 100), Part(1, 100)),
        ("slurm", slurm(9, 1, 9, 3), Part(3, 3)),  # --array=1-9:4
        ("slurm", slurm(7, 7, 7, 1), Part(1, 1)),
    ],
)
def test_parts_that_are_understood(text, environment, part):
    assert parse_part(text, environment) == part


@pytest.mark.parametrize(
    ("text", "environment", "reason"),
    [
        ("3", {}, "must be k/n, such as 3/10, or slurm"),
        ("0/3", {}, "counted from 1 to 3"),
        ("1/0", {}, "the number of parts must be positive"),
        ("slurm", {}, "SLURM_ARRAY_TASK_ID is not set"),
        ("slurm", {**slurm(1, 1, 3, 3), "SLURM_ARRAY_TASK_COUNT": "x"}, "SLURM_ARRAY_TASK_COUNT is not set"),
        ("slurm", slurm(1, 1, 8, 3), "no equal steps"),  # --array=1,5,8
        ("slurm", slurm(5, 1, 7, 3), "task 5 is not in the array from 1 to 7 in steps of 3"),
    ],
)
def test_parts_that_are_not(text, environment, reason):
    with pytest.raises(InputError, match=reason):
        parse_part(text, environment)


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in NAMES:
        Image.new("RGB", (48, 32), (90, 150, 30 * int(name))).save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


def test_every_photo_is_of_one_part_whatever_is_done(photos):
    sources = find_sources([str(photos)])
    for count in (1, 2, 3, 10):
        parts = [of_part(sources, Part(number, count)) for number in range(1, count + 1)]
        assert sorted(s.name for part in parts for s in part) == NAMES
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert of_part(sources, None) == list(sources)
    share = DecoderShare(sources, None, {}, rank=1, size=2, part=Part(1, 2))
    assert [s.name for s in share.mine] == ["2", "6"]


@pytest.mark.parametrize(("shards", "count"), [(1, 3), (3, 3), (5, 2)])
@pytest.mark.parametrize("decoders", [1, 2])
def test_every_photo_of_containers_is_of_one_part(tmp_path, photos, shards, count, decoders):
    (tmp_path / "in").mkdir()
    for number in range(shards):
        with tarfile.open(tmp_path / "in" / f"{number}.tar", "w") as archive:
            for name in range(5):
                archive.add(photos / "0.png", f"{name}.png")
    sources = limited(find_sources([str(tmp_path / "in" / "*.tar")]), 4)
    names, touched = [], []
    for number in range(1, count + 1):
        share = DecoderShare(sources, None, {}, part=Part(number, count))
        mine = [item.source.name for worker in range(decoders) for _, item in share.items(worker, decoders)]
        names += mine
        touched.append({name.split("/")[0] for name in mine})
    assert sorted(names) == sorted(f"{n}/{k}" for n in range(shards) for k in range(4))
    if shards >= count:
        assert sum(map(len, touched)) == shards, "a container is read by two parts"


def files(out):
    return {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != "predictions.jsonl"}


def lines(out):
    content = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in content]


@pytest.mark.usefixtures("narrow")
def test_parts_and_their_merge_equal_one_run(micro_run, photos, tmp_path, seamseg_main, capsys):
    def predict(out, *words):
        return seamseg_main("predict", micro_run, photos, tmp_path / out, "--format", "coco", *CPU, *words)

    assert predict("whole") == 0
    for part in ("3/3", "1/3"):
        assert predict("out", "--part", part) == 0
        assert not (tmp_path / "out" / "panoptic.json").exists()
    # again, and with another number of parts
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.png")}
    assert predict("out", "--part", "1/3") == 0
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.png")}
    capsys.readouterr()
    assert predict("out", "--part", "1/4") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "--part 1/4: the output holds predictions.part" in error
    assert "of a division into 3 parts" in error
    for restart in ((), ("--restart",)):
        assert predict("out", "--part", "2/3", "--min-area", "7", *restart) == 2
        assert "holds predictions of another run: min_area" in capsys.readouterr().err
    # the run without a part does what the second part has not done, merges and tidies up
    assert predict("out") == 0
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")
    assert [line["name"] for line in lines(tmp_path / "out")[1:]] == NAMES
    # then any division may add images to it, and skips what is done
    Image.new("RGB", (48, 32)).save(photos / "9.png")
    for part in ("1/2", "2/2"):
        assert predict("out", "--part", part) == 0
    own = [p.read_text().splitlines()[1:] for p in sorted((tmp_path / "out").glob("predictions.part*.jsonl"))]
    assert [json.loads(line)["name"] for part in own for line in part] == ["9"]
    assert predict("out") == 0
    assert [line["name"] for line in lines(tmp_path / "out")[1:]] == [*NAMES, "9"]
    assert predict("out", "--part", "1/2", "--min-area", "7", "--restart") == 2
    assert "start over with --restart and without --part" in capsys.readouterr().err


@pytest.mark.usefixtures("narrow")
def test_shards_of_parts_at_a_url(micro_run, photos, seamseg_main, memory, capsys):
    words = ("predict", micro_run, photos, "memory://b/out/p-%d.tar", "--format", "coco", "--shard-photos", "2", *CPU)
    assert seamseg_main(*words, "--part", "2/2") == 0
    assert seamseg_main(*words, "--part", "1/2", "--min-area", "7") == 2
    assert "holds predictions of another run: min_area" in capsys.readouterr().err
    assert seamseg_main(*words, "--part", "1/2") == 0
    names = [name.rpartition("/")[2] for name in memory.find("memory://b/out") if "predictions" in name]
    assert names == ["predictions.part1of2.jsonl", "predictions.part2of2.jsonl"]
    assert seamseg_main(*words) == 0
    names = [name.rpartition("/")[2] for name in memory.find("memory://b/out")]
    assert names == [*(f"p-{number}.tar" for number in range(4)), "panoptic.json", "predictions.jsonl"]
    content = memory.cat_file("memory://b/out/predictions.jsonl").splitlines()
    assert [json.loads(line)["name"] for line in content[1:]] == NAMES


def test_a_manifest_that_another_part_has_just_merged_is_no_error(tmp_path):
    """It is listed, and gone before it is read."""
    head = header("model", "0", {})
    parts = ManifestParts(FolderStore(tmp_path), head, tmp_path / "scratch", Part(1, 2))
    parts.check_others({"predictions.part2of2.rank0.000001.jsonl": 10})
    (tmp_path / "predictions.part2of2.jsonl").write_text(json.dumps({**head, "sha256": "1"}) + "\n")
    with pytest.raises(InputError, match="another run: the model"):
        parts.check_others({"predictions.part2of2.jsonl": 10})


def test_locks_of_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock_module, "_PART_SECONDS", 0.3)
    with FolderLock(tmp_path, Part(1, 2)) as first, FolderLock(tmp_path, Part(2, 2)) as second:
        first.acquire_exclusive()
        second.acquire_exclusive()
        with FolderLock(tmp_path, Part(1, 2)) as again, pytest.raises(SeamsegError, match="is writing part 1/2"):
            again.acquire_exclusive()
        first.acquire_shared()
        with FolderLock(tmp_path, Part(1, 2)) as process:
            process.acquire_shared()
        for _ in range(2):
            with (
                FolderLock(tmp_path) as whole,
                pytest.raises(SeamsegError, match=r"part \(predictions.part.of2.lock\)"),
            ):
                whole.acquire_exclusive()
    with FolderLock(tmp_path) as whole:
        whole.acquire_exclusive()
        assert list(tmp_path.iterdir()) == []
        whole.acquire_shared()
        with FolderLock(tmp_path, Part(1, 2)) as part, pytest.raises(SeamsegError, match="writing to this folder"):
            part.acquire_exclusive()
    assert capsys.readouterr().err == ""
