"""Networks of a kind read all keys that have an effect on it, and none of those that are refused or reset for it."""

import sys
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import fields
from io import StringIO
from unittest import mock

import pytest
from support.micro import CONFIG

from seamseg.config import KINDS, config_from_string
from seamseg.config.sections import SECTIONS
from seamseg.inference.options import InferenceOptions
from seamseg.models.heads.rpn import AnchorGenerator
from seamseg.training.options import TrainerOptions
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.setup import segmentation

CHOOSING = {
    *("general.base", "general.components", "general.network", "optimizer.type"),
    *("sem.loss", "dataloader.reader"),
    "optimizer.beta2",  # of Adam, which is not chosen here
}
"""Keys that choose kinds or components by name, read by the configuration itself."""

pytestmark = pytest.mark.usefixtures("narrow")


@contextmanager
def recorded(sections):
    """Record which keys the package reads, apart from checks and copies of the configuration."""
    reads = set()

    def recorder(section, names):
        def get(self, name):
            if name in names:
                frame = sys._getframe(1)
                caller, function = frame.f_globals["__name__"], frame.f_code.co_name
                # a section may offer what follows from its keys
                derived = isinstance(getattr(type(self), function, None), property)
                package = caller.startswith("seamseg.") and (derived or not caller.startswith("seamseg.config."))
                if package and not function.startswith("_check"):
                    reads.add(f"{section}.{name}")
            return object.__getattribute__(self, name)

        return get

    with ExitStack() as stack:
        for section, cls in sections.items():
            names = {spec.name for spec in fields(cls)}
            stack.enter_context(mock.patch.object(cls, "__getattribute__", recorder(section, names)))
        yield reads


@pytest.mark.parametrize("kind", KINDS)
def test_all_keys_of_a_kind_are_read_and_no_others(kind, micro, tmp_path):
    config = config_from_string(CONFIG.format(norm="bn"), overrides=[f"general.kind={kind}"])
    AnchorGenerator.__call__.cache_clear()  # networks of equal keys share their anchors
    with recorded({**SECTIONS, "trainer": TrainerOptions}) as reads, redirect_stdout(StringIO()):
        InferenceOptions().input_size(config)
        run_training(TrainingOptions("micro.ini", micro, tmp_path, device="cpu"), segmentation(config))
    # without `key_names`, which messages need
    copied = {f"trainer.{spec.name}" for spec in fields(TrainerOptions)} - {"trainer.key_names"}
    used = {f"{s}.{spec.name}" for s, cls in SECTIONS.items() for spec in fields(cls) if KINDS[kind].uses(s, spec.name)}
    assert reads == copied | used - CHOOSING
