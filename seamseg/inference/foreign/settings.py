"""Settings of networks of other libraries, as a configuration of ours; no torch."""

from __future__ import annotations

from collections.abc import Mapping

from seamseg.config import Config, config_from_string
from seamseg.inference.options import InferenceOptions


def neutral_config(
    kind: str, keys: Mapping[str, object], name: str, options: InferenceOptions, sections: tuple[str, ...]
) -> Config:
    """Return a configuration that carries the settings of a network of another library; it is scored on the split val.

    Parameters
    ----------
    kind : kind of the network
    keys : `section.key` with their values
    name : name of the model, for errors
    options : their overrides are applied
    sections : sections that overrides may change

    Raises
    ------
    InputError
        if an override is malformed or has no effect
    """
    options.check_overrides(sections, f"has no effect on {name}, which is no network of seamseg")
    texts: dict[str, list[str]] = {}
    for key, value in {**keys, "dataloader.val_set": "val"}.items():
        section, _, option = key.partition(".")
        texts.setdefault(section, [f"[{section}]"]).append(f"{option} = {value}")
    ini = "\n".join(line for lines in texts.values() for line in lines)
    return config_from_string(ini, kind, name, options.overrides)
