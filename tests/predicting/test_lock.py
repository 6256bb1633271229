"""One run at a time in an output folder: a lock that ends with its process, and that decoders do not keep."""

import gc
import os
import signal

import pytest
from PIL import Image

from seamseg.predicting.folder import OutputFolder
from seamseg.utils.errors import InputError


def test_a_killed_run_whose_decoder_survives(tmp_path):
    folder = OutputFolder(tmp_path / "out", [], {})
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        # nothing of the test may run on in this process, nor finalisers that wait for threads of the other
        gc.disable()
        try:
            with folder.lock():
                if os.fork() == 0:
                    os.write(writing, f"{os.getpid()}\n".encode())
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        child = int(file.readline())
    try:
        refused = f"in use by process {process} on .*another `seamseg predict`"
        with pytest.raises(InputError, match=refused), folder.lock():
            pass
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    try:
        with folder.lock():
            pass
    finally:
        os.kill(child, signal.SIGKILL)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, seamseg_main, capsys):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    with OutputFolder(tmp_path / "out", [], {}).lock():
        assert seamseg_main(*words) == 2
        (error,) = capsys.readouterr().err.strip().splitlines()
        assert "another `seamseg predict` is writing to this folder: wait until it ends" in error
    assert seamseg_main(*words) == 0
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
