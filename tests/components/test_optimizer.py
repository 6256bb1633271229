"""An optimizer and a schedule of the user: trained, resumed, and part of the snapshot."""

import hashlib

import pytest
import torch
from support.components import LION, assert_refused, component_file, forget

from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config.components import NotLoaded
from seamseg.training.run import TrainingOptions, run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

GIVEN = ("optimizer.type=lion", "optimizer.lr=.0003", "scheduler.type=halving", "optimizer lion.beta1=.8")
file, options = component_file("my_lion.py", LION, *GIVEN)


LOSS = """
from seamseg.components import loss

@loss("broken")
def broken(image, keys):
    return image.logit.sum()
"""


def test_a_snapshot_states_its_components_and_opens_without_them(options, tmp_path, micro, micro_config, file):
    run_training(options("run", "scheduler.epochs=1"))
    snapshot = load_snapshot(tmp_path / "run" / "model_last.pth.tar")
    checksum = hashlib.sha256(LION.encode()).hexdigest()
    assert [(r.kind, r.name, r.module, r.sha256) for r in snapshot.components] == [
        ("optimizer", "lion", "my_lion", checksum),
        ("scheduler", "halving", "my_lion", checksum),
    ]
    assert "[optimizer lion]\nbeta1 = .8\nbeta2 = 0.99\n" in snapshot.config.replace("0.8", ".8")
    file.write_text(LION.replace("0.99", "0.98"))
    run_training(options("run", "scheduler.epochs=1", resume="auto"))
    assert f"optimizer lion: {file} has changed since the training" in (tmp_path / "run" / "training.log").read_text()
    forget("my_lion")
    opened = open_model(tmp_path / "run")
    parts = opened.config.parts
    assert [name for name in parts if isinstance(parts[name], NotLoaded)] == ["optimizer lion", "scheduler halving"]
    with pytest.raises(InputError, match=r"no optimizer 'lion'"):
        opened.config.component("optimizer")
    plain = TrainingOptions(micro_config, micro, tmp_path / "run", resume="auto", device="cpu")
    with pytest.raises(InputError, match="its optimizer is lion, this training uses sgd") as error:
        run_training(plain)
    assert "optimizer lion (my_lion.py) is not imported: name its file with `components=FILE`" in str(error.value)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(groups, {})", "(groups, {'to': print})", r"state_dict\(\)\['param_groups'\]\[0\]\['to'\] is a builtin"),
        ("(groups, {})", "(groups[:1], {})", r"my_lion.py\): \d+ of \d+ parameters are in no group"),
        ("return 0.5 **", "return (1 if t < total else -1) * 0.5 **", "the factor of the learning rate at 8 is -0.0"),
        ("super().__init__(groups, {})", "pass", r"my_lion.py\): call super\(\).__init__\(groups, DEFAULTS\)"),
        ("return 0.5 **", "return half **", "scheduler halving, .*my_lion.py line 41: NameError: name 'half'"),
        ("momentum.lerp_(", "momentum.lerb_(", "optimizer Lion, .*my_lion.py line 35: AttributeError"),
        ("import torch\n", f"import torch\n{LOSS}", "loss broken, .*my_lion.py line 11: AttributeError: .*logit"),
    ],
)
def test_mistakes(options, tmp_path, file, old, new, message):
    assert_refused(options("run", *(["sem.loss=broken"] if LOSS in new else [])), message, file, old, new)
    assert not list((tmp_path / "run").glob("**/*.tar"))
