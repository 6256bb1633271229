"""Which images are found, and the names of their outputs."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from seamseg.predicting.find import find_sources
from seamseg.predicting.folder import OutputFolder
from seamseg.predicting.source import Source
from seamseg.utils.errors import InputError, UnreadableImage


@pytest.fixture
def tree(tmp_path):
    for name in ("b.JPG", "a.png", "a.jpg", "notes.txt", ".hidden.png", "sub/a.png", "sub/deep/c.tiff", ".git/x.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "photos"


def names(sources):
    return [s.name for s in sources]


def test_a_folder_with_its_sub_folders(tree):
    sources = find_sources(tree)
    assert names(sources) == ["a.jpg", "a.png", "b", "sub/a", "sub/deep/c"]
    assert [s.relative for s in sources] == ["a.jpg", "a.png", "b.JPG", "sub/a.png", "sub/deep/c.tiff"]
    assert all(s.path == tree / s.relative for s in sources)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a.jpg", "a.png", "a.jpg.png", "b.png"], ["a.jpg", "a.jpg.png", "a.png", "b"]),
        (["A.jpg", "a.png"], ["A.jpg", "a.png"]),
        (["IMG_1.jpg", "Img_1.jpg", "b.jpg", "img_1.jpg"], ["IMG_1.jpg", "Img_1.jpg.2", "b", "img_1.jpg.3"]),
    ],
)
def test_names_are_unique(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).touch()
    assert names(find_sources(tmp_path)) == expected


@pytest.mark.parametrize("name", ["notes.dat", "a[1].png"])
def test_a_named_file_is_used_whatever_its_name(tree, name):
    (tree / name).touch()
    assert find_sources(tree / name) == [Source(tree / name, Path(name).stem, name)]


def test_a_glob_keeps_the_folders_below_its_fixed_part(tree):
    assert names(find_sources(f"{tree}/**/*.png")) == ["a", "sub/a"]
    assert names(find_sources(f"{tree}/su?/*.png")) == ["sub/a"]
    assert names(find_sources(f"{tree}/*.JPG")) == ["b"]


def test_outputs_inside_the_folder_are_not_inputs(tree, capsys):
    (tree / "out").mkdir()
    (tree / "out" / "old.jpg").touch()
    assert "out/old" not in names(find_sources(tree, tree / "out"))
    assert "out/old" in names(find_sources(tree))
    # those above the images hide none of them
    assert names(find_sources(tree, tree.parent)) == names(find_sources(tree))
    assert names(find_sources(f"{tree}/**/*.png", tree.parent)) == ["a", "sub/a"]
    assert names(find_sources(f"{tree}/*.JPG", tree)) == ["b"]
    for made in ("old/predictions.jsonl", "sub/data/metadata.bin"):
        (tree / made).parent.mkdir()
        (tree / made).touch()
        (tree / made).with_name("x.png").touch()
    for inputs, left in ((tree, 6), (f"{tree}/**/*.png", 2)):
        assert len(find_sources(inputs, tree / "new")) == left
        lines = capsys.readouterr().err.splitlines()
        assert sorted(line.partition(": left out")[0] for line in lines) == [str(tree / "old"), str(tree / "sub/data")]
    assert names(find_sources(tree / "old")) == ["x"]
    assert names(find_sources(f"{tree}/*/data/*.png")) == ["sub/data/x"]
    with pytest.raises(InputError, match="would mix; choose another output folder"):
        find_sources(tree, tree / "sub" / "..")


def test_cyclic_links(tree):
    (tree / "sub" / "again").symlink_to(tree, target_is_directory=True)
    assert names(find_sources(tree))[-1] == "sub/deep/c"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("{}/empty", "0 images found in this folder; looked for .jpg"),
        ("{}/missing", "no such image, video, folder or list"),
        ("{}/*.png", "0 images match"),
        ("", "IN is empty, is a variable not set"),
        (" ", "IN is empty"),
        (["", "a.jpg"], "IN is empty"),
    ],
)
def test_missing_inputs(tmp_path, inputs, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=message):
        find_sources(inputs.format(tmp_path) if isinstance(inputs, str) else inputs)


def test_no_inputs():
    with pytest.raises(InputError, match="`inputs` is empty: name images, videos"):
        find_sources([])


def test_photos_are_not_overwritten(tree):
    sources = find_sources(tree)
    elsewhere, above = (
        SimpleNamespace(paths=lambda source, out=out: [out / source.relative])
        for out in (Path("elsewhere"), tree / "sub" / "..")
    )
    OutputFolder(tree, [elsewhere], {}).check_names(sources)
    with pytest.raises(InputError, match=r"a\.jpg: this output would overwrite an input image"):
        OutputFolder(tree, [above], {}).check_names(sources)


def test_equal_names_are_refused():
    sources = [Source(Path(f"in/{number}.jpg"), str(number), f"{number}.jpg") for number in (0, 1, 0)]
    writer = SimpleNamespace(paths=lambda source: [Path("out") / f"{source.name}.jpg"])
    folder = OutputFolder(Path("out"), [writer], {})
    folder.check_names(sources[:2])
    with pytest.raises(InputError, match="would both be written"):
        folder.check_names(sources)


def test_several_inputs(tree):
    both = names(find_sources([tree / "b.JPG", tree / "sub", tree / "b.JPG", str(tree / "sub" / ".." / "b.JPG")]))
    assert sorted(both) == sorted(["b", *(f"sub/{name}" for name in names(find_sources(tree / "sub")))])
    assert names(find_sources([tree])) == names(find_sources(tree))


def test_comments_in_a_list(tree):
    (tree / "list.txt").write_text("# the best\na.jpg\n\n#1.png\na.jpg\n")
    assert names(find_sources(tree / "list.txt")) == ["a"]
    (tree / "#1.png").touch()
    assert names(find_sources(tree / "list.txt")) == ["a", "#1"]


def test_a_folder_that_cannot_be_listed(tree, monkeypatch):
    def refuse(path, scan):
        if Path(path).name == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    before = names(find_sources(tree))
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, partial(refuse, scan=getattr(os, name)))
    closed = "sub"
    found = find_sources(tree)
    assert {s.name for s in found} == {name for name in before if not name.startswith("sub/")} | {"sub/"}
    with pytest.raises(UnreadableImage, match=r"sub: this folder cannot be listed: Permission denied"):
        next(s for s in found if s.name == "sub/").open()
    closed = tree.name
    with pytest.raises(InputError, match="this folder cannot be listed: Permission denied"):
        find_sources(tree)


def test_videos_of_a_folder_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jpg", "b.mp4", "sub/c.MKV"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [source.name for source in find_sources(tmp_path)] == ["a"]
    assert capsys.readouterr().err == f"{tmp_path}: 2 videos skipped; use a glob for videos, such as '*.mp4'\n"
