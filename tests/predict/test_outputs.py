"""`predict` to a URL and to tar shards: the outputs are those of a folder, each image once, whatever fails."""

import gc
import io
import json
import os
import re
import signal
import tarfile
from collections import Counter

import pytest
from PIL import Image

from seamseg.inference.predictor import Predictor
from seamseg.predict.sinks import remote, store
from seamseg.predict.sinks.shards import key_of
from seamseg.predict.sources.shards import Shard

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("narrow")
CPU = ("--device", "cpu", "--workers", "0", "--quiet")
NAMES = ["a", "b.v1", "sub/a", "sub/c"]


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(NAMES):
        path = tmp_path / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 32), (90 + 20 * number, 150, 220)).save(path)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def no_delays(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "RETRY_SECONDS", (0.0, 0.0))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    yield
    assert not list((tmp_path / "tmp").iterdir()), "a scratch folder is left over"


def content_of_folder(out):
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def content_of_url(url):
    system, root = fsspec.core.url_to_fs(url)
    return {path[len(root) + 1 :]: system.cat_file(path) for path in system.find(root)}


def members(*shards):
    found = {}
    for shard in shards:
        with tarfile.open(fileobj=io.BytesIO(shard) if isinstance(shard, bytes) else open(shard, "rb")) as archive:
            for info in archive:
                assert info.name not in found, f"{info.name} is there twice"
                found[info.name] = archive.extractfile(info).read()
    return found


def lines(data):
    return [json.loads(line) for line in data.splitlines()[1:]]


def without_times(data, *more):
    return [{k: v for k, v in line.items() if k not in ("seconds", *more)} for line in lines(data)]


def same(local, remote):
    assert local.keys() == remote.keys()
    for name in local:
        if name == "predictions.jsonl":
            assert without_times(local[name]) == without_times(remote[name])
        else:
            assert local[name] == remote[name], name


@pytest.mark.parametrize(
    "words",
    [("--format", "coco,overlay,raw"), ("--format", "coco", "--anonymize", "car"), ("--format", "vistas,cityscapes")],
    ids=lambda words: words[1],
)
def test_a_url_gets_the_outputs_of_a_folder(micro_run, photos, tmp_path, seamseg_main, memory, words, monkeypatch):
    if "vistas" in words[1]:
        (photos / "sub" / "a.png").unlink()
        words += ("--score-threshold", "0.01")
    monkeypatch.setattr(remote, "PART_SECONDS", 0.0)
    assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *CPU, *words) == 0
    assert seamseg_main("predict", micro_run, photos, "memory://bucket/out", *CPU, *words) == 0
    assert seamseg_main("predict", micro_run, photos, f"file://{tmp_path}/file", *CPU, *words) == 0
    local = content_of_folder(tmp_path / "out")
    same(local, content_of_url("memory://bucket/out"))
    same(local, content_of_folder(tmp_path / "file"))


@pytest.mark.parametrize("url", [False, True])
def test_shards_get_the_outputs_of_a_folder(micro_run, photos, tmp_path, seamseg_main, memory, url):
    words = (*CPU, "--format", "coco,overlay")
    assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *words) == 0
    out = "memory://bucket/out" if url else tmp_path / "shards"
    assert seamseg_main("predict", micro_run, photos, f"{out}/part-%03d.tar", *words, "--shard-photos", "3") == 0
    found = content_of_url(out) if url else content_of_folder(out)
    assert sorted(found) == ["panoptic.json", "part-000.tar", "part-001.tar", "predictions.jsonl"]
    local = content_of_folder(tmp_path / "out")
    assert found["panoptic.json"] == local["panoptic.json"]
    packed = members(found["part-000.tar"], found["part-001.tar"])
    keys = ["a", "b%2ev1", "sub/a", "sub/c"]
    assert sorted(packed) == sorted(f"{k}.{e}" for k in keys for e in ("json", "overlay.jpg", "panoptic.png"))
    annotations = {a["image_id"]: a for a in json.loads(local["panoptic.json"])["annotations"]}
    for key, name in zip(keys, NAMES):
        assert packed[f"{key}.overlay.jpg"] == local[f"{name}.jpg"]
        assert packed[f"{key}.panoptic.png"] == local[f"panoptic/{name}.png"]
        about = json.loads(packed[f"{key}.json"])
        assert about["name"] == name
        assert about["segments_info"] == annotations[name]["segments_info"]
    # the files of an image are adjacent
    with tarfile.open(fileobj=io.BytesIO(found["part-000.tar"])) as archive:
        order = [n.rpartition("/")[2].partition(".")[0] for n in archive.getnames()]
    assert [order[k : k + 3] for k in range(0, len(order), 3)] == [[k] * 3 for k in order[::3]]
    for line in lines(found["predictions.jsonl"]):
        assert set(line["members"]) <= set(members(found[line["outputs"][0]]))
    of_shards = without_times(found["predictions.jsonl"], "outputs", "members")
    assert of_shards == without_times(local["predictions.jsonl"], "outputs")


def test_shards_are_read_back_as_photos(micro_run, photos, tmp_path, seamseg_main):
    words = (*CPU, "--anonymize", "car")
    assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *words) == 0
    assert seamseg_main("predict", micro_run, photos, tmp_path / "shards" / "p-{00..09}.tar", *words) == 0
    items = list(Shard(str(tmp_path / "shards" / "p-00.tar"), "p-00", "p-00.tar").items())
    assert sorted(item.source.name for item in items) == sorted(f"p-00/{key_of(name)}" for name in NAMES)
    local = content_of_folder(tmp_path / "out")
    assert sorted(i.content for i in items) == sorted(v for k, v in local.items() if k.endswith(".jpg"))
    # outputs beside the inputs are not used as inputs by a second run
    (tmp_path / "shards" / "predictions.jsonl").unlink()
    beside = tmp_path / "shards" / "second-%02d.tar"
    for _ in range(2):
        assert seamseg_main("predict", micro_run, tmp_path / "shards" / "*.tar", beside, *CPU) == 0
        assert len(lines((tmp_path / "shards" / "predictions.jsonl").read_bytes())) == len(NAMES)
    assert sorted(p.name for p in (tmp_path / "shards").glob("*.tar")) == ["p-00.tar", "second-00.tar"]


def test_webdataset_reads_the_shards(micro_run, photos, tmp_path, seamseg_main):
    webdataset = pytest.importorskip("webdataset")
    words = (*CPU, "--format", "coco,overlay,raw", "--shard-photos", "2")
    assert seamseg_main("predict", micro_run, photos, tmp_path / "p-%03d.tar", *words) == 0
    samples = list(webdataset.WebDataset(f"{tmp_path}/p-{{000..001}}.tar", shardshuffle=False))
    assert sorted(json.loads(s["json"])["name"] for s in samples) == NAMES
    for sample in samples:
        found = {key for key in sample if not key.startswith("__")}
        assert found == {"json", "overlay.jpg", "panoptic.png", "raw.pth"}
        assert sample["__key__"] == key_of(json.loads(sample["json"])["name"])


@pytest.mark.parametrize("out", ["", "p-%d.tar"])
def test_missing_new_or_changed_photos_are_processed(micro_run, photos, tmp_path, seamseg_main, out, capsys):
    place = tmp_path / "out" / out
    words = ("--device", "cpu", "--workers", "0", "--format", "coco", "--shard-photos", "1")

    def again(*more):
        assert seamseg_main("predict", micro_run, photos, place, *words, *more) == 0
        found = content_of_folder(tmp_path / "out")
        names = [line["name"] for line in lines(found["predictions.jsonl"])]
        assert [i["id"] for i in json.loads(found["panoptic.json"])["images"]] == names
        if "%" in out:
            shards = [name for name in found if name.endswith(".tar")]
            assert sorted(n for n in members(*(found[n] for n in shards)) if n.endswith("json")) == sorted(
                f"{key_of(name)}.json" for name in names
            )
        assert not [name for name in found if "rank" in name or "partial" in name]
        return int(re.findall(r"(\d+) images? in ", capsys.readouterr().err)[0]), names

    assert again("--limit", "2") == (2, NAMES[:2])
    assert again() == (2, NAMES)
    assert again() == (0, NAMES)
    if "%" not in out:
        Image.new("RGB", (48, 32), (1, 2, 3)).save(photos / "a.png")
        assert again() == (1, NAMES)
    (tmp_path / "out" / ("p-2.tar" if "%" in out else "panoptic/sub/a.png")).unlink()
    assert again() == (1, NAMES)
    assert seamseg_main("predict", micro_run, photos, place, *words, "--min-area", "5") == 2
    assert "min_area None (now 5)" in capsys.readouterr().err
    assert again("--min-area", "5", "--restart") == (4, NAMES)


def test_a_photo_that_changed_needs_a_restart_with_shards(micro_run, photos, tmp_path, seamseg_main, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out" / "p-%d.tar", *CPU, "--format", "coco")
    assert seamseg_main(*words) == 0
    before = content_of_folder(tmp_path / "out")
    Image.new("RGB", (40, 40), (9, 9, 9)).save(photos / "a.png")
    assert seamseg_main(*words) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "a.png: changed since its outputs were written to" in error
    assert "p-0.tar; start over with --restart" in error
    same(before, content_of_folder(tmp_path / "out"))
    assert seamseg_main(*words, "--restart") == 0
    old, new = (members(content["p-0.tar"]) for content in (before, content_of_folder(tmp_path / "out")))
    assert {name for name in new if new[name] != old[name]} == {"a.panoptic.png", "a.json"}


def test_unknown_shards_are_not_changed(micro_run, photos, tmp_path, seamseg_main, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "p-7.tar").write_bytes(b"mine")
    for more in ((), ("--restart",)):
        assert seamseg_main("predict", micro_run, photos, tmp_path / "out" / "p-%d.tar", *CPU, *more) == 2
        assert "p-7.tar: exists already and is not of this run" in capsys.readouterr().err
    assert (tmp_path / "out" / "p-7.tar").read_bytes() == b"mine"
    # shards with other names do not matter
    assert seamseg_main("predict", micro_run, photos, tmp_path / "out" / "q-%d.tar", *CPU) == 0


@pytest.mark.parametrize(("name", "fails"), [("", r"panoptic/sub/[a-z]+\.png"), ("p-%d.tar", "p-2.tar")])
def test_a_permanent_failure_of_a_store_is_one_line(
    micro_run, photos, seamseg_main, memory, name, fails, monkeypatch, capsys
):
    words = ("predict", micro_run, photos, f"memory://b/{name}", *CPU, "--format", "coco", "--shard-photos", "1")
    tries = Counter()
    put = type(memory).put_file

    def failing(self, path, target, *more, **options):
        tries[target] += 1
        if re.search(fails, target):
            raise OSError("the bucket leaks")
        if tries[target] < 3:
            raise ConnectionError("lost")
        return put(self, path, target, *more, **options)

    monkeypatch.setattr(type(memory), "put_file", failing)
    assert seamseg_main(*words) == 1
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(f"{fails}: cannot be written: OSError: the bucket leaks; re-run the same", error)
    assert max(tries.values()) == 3
    assert {"p-0.tar", "panoptic/a.png"} & set(content_of_url("memory://b")), "what fails twice only is written"
    monkeypatch.setattr(type(memory), "put_file", put)
    assert seamseg_main(*words) == 0
    assert [line["name"] for line in lines(content_of_url("memory://b")["predictions.jsonl"])] == NAMES


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_gracefully(micro_run, photos, tmp_path, seamseg_main, capsys, monkeypatch, number, code):
    see, seen = Predictor.raw, []

    def signalled(self, images):
        seen.append(images)
        if len(seen) == 3:
            os.kill(os.getpid(), number)
        return see(self, images)

    monkeypatch.setattr(Predictor, "raw", signalled)
    words = ("predict", micro_run, photos, tmp_path / "out" / "p-%d.tar", *CPU)
    # Python ignores what a handler raises within a callback of the garbage collector, and Hypothesis has one
    gc.disable()
    try:
        assert seamseg_main(*words) == code
    finally:
        gc.enable()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "seamseg predict: interrupted; re-run the same command to resume"
    # images that were written are in a shard; the second may have been in the network only
    written = len(lines((tmp_path / "out" / "predictions.rank0.000001.jsonl").read_bytes()))
    assert written in (1, 2)
    done = len(seen)
    assert seamseg_main(*words) == 0
    assert len(seen) - done == len(NAMES) - written


def test_a_full_disk_while_a_shard_is_made(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    addfile, count = tarfile.TarFile.addfile, [0]

    def full(self, info, data=None):
        count[0] += 1
        if count[0] == 6:
            raise OSError(28, "No space left on device")
        return addfile(self, info, data)

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    words = ("predict", micro_run, photos, tmp_path / "out" / "p-%d.tar", *CPU, "--shard-photos", "2")
    assert seamseg_main(*words) == 1
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert ".tar: cannot be written: No space left on device" in error
    # the shard that failed is dropped
    assert seamseg_main(*words) == 0
    assert len(members(*(tmp_path / "out").glob("*.tar"))) == 2 * len(NAMES)


def test_unreadable_photos_have_a_line_and_are_retried(micro_run, photos, seamseg_main, memory):
    (photos / "a.png").write_bytes(b"no image")
    words = ("predict", micro_run, photos, "memory://b/p-%d.tar", *CPU)
    for _ in range(2):
        assert seamseg_main(*words) == 1
        found = lines(content_of_url("memory://b")["predictions.jsonl"])
        assert [line["status"] for line in found] == ["unreadable", "ok", "ok", "ok"]


def test_photos_and_outputs_at_one_url(micro_run, photos, seamseg_main, memory, capsys):
    memory.pipe("/b/city/a.png", (photos / "a.png").read_bytes())
    assert seamseg_main("predict", micro_run, "memory://b/city", "memory://b/city", *CPU) == 2
    assert "contains only outputs of `predict`" in capsys.readouterr().err
    # outputs below the images are not searched
    for _ in range(2):
        assert seamseg_main("predict", micro_run, "memory://b/city", "memory://b/city/out/", *CPU) == 0
        assert len(lines(content_of_url("memory://b/city/out")["predictions.jsonl"])) == 1


def test_a_run_with_too_few_shard_numbers_can_be_resumed(micro_run, photos, tmp_path, seamseg_main, capsys):
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name in "abc":
            tar.add(photos / "a.png", f"{name}.png")
    words = ("predict", micro_run, tmp_path / "in.tar", *CPU, "--shard-photos", "1")
    assert seamseg_main(*words, tmp_path / "out" / "p-{1..2}.tar") == 1
    assert "more images than shards; re-run the same command with a larger last number" in capsys.readouterr().err
    assert seamseg_main(*words, tmp_path / "out" / "p-{1..9}.tar") == 0
    assert sorted(p.name for p in (tmp_path / "out").glob("*.tar")) == ["p-1.tar", "p-2.tar", "p-3.tar"]
