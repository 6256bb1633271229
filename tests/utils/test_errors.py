"""Texts of files in messages: short, and without escape sequences."""

from __future__ import annotations

from seamseg.utils.errors import InputError, one_line


def test_texts_of_files_in_messages():
    """No escape sequence reaches a terminal, and no text of any length."""
    assert str(InputError("a\x1b]0;title\x07\x9b2J\r.jpg: truncated")) == r"a\x1b]0;title\x07\x9b2J\r.jpg: truncated"
    assert str(InputError("straße\t\u732b\nb")) == "straße\t\u732b\nb"
    assert str(InputError("caf\udce9 " + "x" * 5000 + " end")) == rf"caf\udce9 {'x' * 150}...{'x' * 150} end"
    assert len(str(InputError("a b " * 5000))) < 2100
    assert one_line(InputError("a\n\tb\x1b")) == r"a b\x1b"
