"""INI files to a typed :class:`Config`: the user's file over the packaged defaults, `--set` over both."""

from __future__ import annotations

import configparser
import difflib
import io
import typing
import warnings
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path

from seamseg.config.sections import SECTIONS, Config
from seamseg.config.values import ValueProblem, parse_value
from seamseg.errors import InputError

KINDS = ("panoptic", "instance_seg", "detection")
"""The tasks, each with its own packaged defaults."""

DEPRECATED: dict[tuple[str, str], str] = {}
"""`(section, key)` of the original that no longer means anything, with what to do instead."""


def load_config(path: str | Path, kind: str = "panoptic", overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file (SPEC section 2).

    Parameters
    ----------
    path : the INI file; keys it lacks take the defaults of `kind`
    kind : task: panoptic, instance_seg or detection
    overrides : `section.key=value` each, as given to `--set`

    Raises
    ------
    InputError
        if the file is missing or cannot be read, or a section, key or value is wrong
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such config file{_near_files(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the config file: {error}") from None
    return config_from_string(text, kind, str(path), overrides)


def config_from_string(
    text: str, kind: str = "panoptic", source: str = "config", overrides: Sequence[str] = ()
) -> Config:
    """As :func:`load_config`, from INI text; `source` is what errors call it."""
    texts = {section: dict(values) for section, values in _defaults(kind).items()}
    for section, values in _read_ini(text, source).items():
        _merge(texts, section, values, source)
    for override in overrides:
        section, key, value = _split_override(override)
        _merge(texts, section, {key: value}, f"--set {override}")
    return _typed(texts, kind, source)


def default_config(kind: str = "panoptic") -> Config:
    """The packaged defaults of a task."""
    return config_from_string("", kind, f"defaults of {kind}")


def config_to_string(config: Config) -> str:
    """INI text of a whole configuration, as snapshots keep it.

    Keys that the original does not know are left out where they have their default, so that it can read the text.
    """
    defaults = _defaults(config.kind)
    parser = _parser()
    for section, values in config.texts.items():
        ours = {f.name for f in fields(SECTIONS[section]) if f.metadata["ours"]}
        parser[section] = {k: v for k, v in values.items() if k not in ours or v != defaults[section][k]}
    out = io.StringIO()
    parser.write(out)
    return out.getvalue()


def _parser() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), default_section="\0")
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    return parser


def _read_ini(text: str, source: str) -> dict[str, dict[str, str]]:
    parser = _parser()
    try:
        parser.read_string(text, source)
    except configparser.Error as error:
        raise InputError(f"{source}: not a valid INI file: {' '.join(str(error).split())}") from None
    return {section: dict(parser[section]) for section in parser.sections()}


@cache
def _defaults(kind: str) -> dict[str, dict[str, str]]:
    if kind not in KINDS:
        raise InputError(f"unknown kind of network {kind!r}: choose {', '.join(KINDS)}")
    folder = resources.files("seamseg.config") / "defaults"
    texts: dict[str, dict[str, str]] = {}
    for name in ("base.ini", f"{kind}.ini"):
        for section, values in _read_ini((folder / name).read_text(encoding="utf-8"), name).items():
            texts.setdefault(section, {}).update(values)
    return texts


def _merge(texts: dict[str, dict[str, str]], section: str, values: dict[str, str], source: str) -> None:
    if section not in SECTIONS:
        raise InputError(f"{source}: unknown section [{section}]{_nearest(section, SECTIONS)}")
    known = {f.name for f in fields(SECTIONS[section])}
    for key, value in values.items():
        if (section, key) in DEPRECATED:
            warnings.warn(f"{source}: [{section}] {key} is ignored: {DEPRECATED[section, key]}", stacklevel=2)
        elif key not in known:
            raise InputError(f"{source}: unknown key {key!r} in [{section}]{_nearest(key, known)}")
        else:
            texts[section][key] = value


def _split_override(override: str) -> tuple[str, str, str]:
    name, equals, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        raise InputError(f"--set {override}: write section.key=value, for example --set optimizer.lr=0.02")
    return section, key, value.strip()


def _typed(texts: dict[str, dict[str, str]], kind: str, source: str) -> Config:
    sections = {}
    for name, cls in SECTIONS.items():
        hints = typing.get_type_hints(cls)
        values = {}
        for spec in fields(cls):
            text = texts[name][spec.name]
            try:
                values[spec.name] = parse_value(text, hints[spec.name], spec)
            except ValueProblem as problem:
                raise InputError(f"{source}: [{name}] {spec.name} = {text}: {problem}") from None
        sections[name] = cls(**values)
    config = Config(kind=kind, texts=texts, **sections)
    _check(config, source)
    return config


def _check(config: Config, source: str) -> None:
    losses = {"panoptic": 6, "instance_seg": 5, "detection": 4}[config.kind]
    if len(config.optimizer.loss_weights) != losses:
        raise InputError(
            f"{source}: [optimizer] loss_weights has {len(config.optimizer.loss_weights)} values, "
            f"{config.kind} has {losses} losses"
        )
    levels = len(config.fpn.inputs) + config.fpn.extra_scales
    if len(config.fpn.out_strides) != levels:
        raise InputError(
            f"{source}: [fpn] out_strides has {len(config.fpn.out_strides)} values, "
            f"inputs and extra_scales make {levels} levels"
        )
    for name in ("rpn", "roi", "sem"):
        section = getattr(config, name)
        if section.fpn_min_level + section.fpn_levels > levels:
            raise InputError(
                f"{source}: [{name}] fpn_min_level + fpn_levels = {section.fpn_min_level + section.fpn_levels}, "
                f"the pyramid has {levels} levels"
            )
    for module in config.fpn.inputs:
        if module not in config.body.out_channels:
            raise InputError(f"{source}: [fpn] inputs names {module!r}, [body] out_channels does not")


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {match[0]!r}?" if match else f"; known are {', '.join(sorted(known))}"


def _near_files(path: Path) -> str:
    names = sorted(p.name for p in path.parent.glob("*.ini")) if path.parent.is_dir() else []
    match = difflib.get_close_matches(path.name, names, 1)
    return f"; did you mean {path.parent / match[0]}?" if match else ""
