"""Settings of networks of other libraries, as a configuration of ours; no torch."""

from __future__ import annotations

from collections.abc import Mapping

from seamseg.config import Config, config_from_string
from seamseg.data.input_size import InputSize
from seamseg.inference.images import input_size
from seamseg.inference.options import InferenceOptions
from seamseg.utils.errors import InputError


def neutral_config(
    kind: str, keys: Mapping[str, object], name: str, options: InferenceOptions, sections: tuple[str, ...]
) -> Config:
    """Return a configuration that carries the settings of a network of another library; it is scored on the split val.

    Parameters
    ----------
    kind : of the network
    keys : `section.key` with their values
    name : of the model, for errors
    options : their overrides are applied
    sections : that overrides may change

    Raises
    ------
    InputError
        if an override is malformed or has no effect
    """
    for override in options.overrides:
        if override.partition(".")[0].strip() not in sections or "general.kind" in override:
            raise InputError(f"`overrides={override}`: has no effect on {name}, which is no network of seamseg")
    texts: dict[str, list[str]] = {}
    for key, value in {**keys, "dataloader.val_set": "val"}.items():
        section, _, option = key.partition(".")
        texts.setdefault(section, [f"[{section}]"]).append(f"{option} = {value}")
    ini = "\n".join(line for lines in texts.values() for line in lines)
    return config_from_string(ini, kind, name, options.overrides)


def input_size_of_authors(config: Config, options: InferenceOptions) -> InputSize:
    """Return the size of the network's input: unless options change it, exactly that of the configuration."""
    loading, longest = config.dataloader, options.longest_max_size
    if longest is None and options.shortest_size is None and options.size is None and loading.longest_size is None:
        # the limit of our own networks is larger
        longest = loading.longest_max_size
    size = input_size(config, options.shortest_size, longest, options.size)
    return size.halved() if options.preview else size
