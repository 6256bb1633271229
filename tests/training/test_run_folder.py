"""Log messages about files of earlier runs in the run folder."""

from seamseg.config import load_config
from seamseg.formats.metadata import Metadata
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.debugging.dump import dump_path
from seamseg.training.logging.logs import TextLog
from seamseg.training.run import log_earlier_runs


def test_dumps_of_earlier_trainings_are_kept_and_counted(tmp_path, capsys):
    classes = Metadata(1, 1, ["road", "car"], [(0, 0, 0), (1, 1, 1)], [0, 1])
    run, config = RunFolder(tmp_path), load_config("toy_city_r18")
    log = TextLog(None)
    run.describe(config, classes)
    log_earlier_runs(run, log, resumed=False)
    assert "dump-step" not in capsys.readouterr().err
    dumps = [dump_path(tmp_path, 7, 0), dump_path(tmp_path, 7, 3)]
    for path in dumps:
        path.write_bytes(b"")
    for resumed in (False, True):
        log_earlier_runs(run, log, resumed)
        assert f"{tmp_path} holds 2 dump-step-*.pth.tar of earlier trainings" in capsys.readouterr().err
    assert all(path.exists() for path in dumps)
