"""Texts of files in messages: short, and without escape sequences."""

from __future__ import annotations

import re

import pytest

from seamseg.config import config_from_string
from seamseg.utils.errors import InputError, one_line
from seamseg.utils.files import nearest_path


def test_texts_of_files_in_messages():
    """No escape sequence reaches a terminal, and no text of any length."""
    assert str(InputError("a\x1b]0;title\x07\x9b2J\r.jpg: truncated")) == r"a\x1b]0;title\x07\x9b2J\r.jpg: truncated"
    assert str(InputError("straße\t\u732b\nb")) == "straße\t\u732b\nb"
    assert str(InputError("caf\udce9 " + "x" * 5000 + " end")) == rf"caf\udce9 {'x' * 150}...{'x' * 150} end"
    assert len(str(InputError("a b " * 5000))) < 2100
    assert one_line(InputError("a\n\tb\x1b")) == r"a b\x1b"


@pytest.mark.parametrize(
    "text",
    [
        "[general]\nkind = {}",
        "[general]\n{} = 1",
        "[general]\n{0} = 1\n{0} = 2",
        "[{}]\nkind = panoptic",
        "[{0}]\na = 1\n[{0}]",
        "[general]\nkind = panoptic\nlog_interval = {}",
        "[body]\nbody = {}",
        "[body]\nnormalization_mode = {}",
        '[body]\nbody = resnet18\nbody_params = {{"dilation": "{}"}}',
        "{}",
    ],
)
def test_a_configuration_of_any_text_is_a_short_message(text):
    with pytest.raises(InputError) as found:
        config_from_string(text.format("x y " * 15_000))
    assert len(str(found.value)) < 1000
    assert max(map(len, re.findall("(?:x y |x)+", str(found.value))), default=0) <= 300


def test_a_similar_path_is_not_searched_in_a_huge_folder(tmp_path, monkeypatch):
    """Among a million names the search would take a minute."""
    names = [f"street{i}.jpg" for i in range(100)]
    monkeypatch.setattr("os.listdir", lambda folder: names)
    assert nearest_path(tmp_path / "stret7.jpg") == f"; did you mean {tmp_path / 'street7.jpg'}?"
    names *= 200
    assert nearest_path(tmp_path / "stret7.jpg") == ""
