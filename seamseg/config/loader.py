"""INI files to a typed :class:`Config`: the user's file over the packaged defaults, overrides over both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import Field, fields
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from seamseg.config import components
from seamseg.config.components import NotLoaded
from seamseg.config.experiments import near_files, packaged
from seamseg.config.kinds import KINDS, PANOPTIC, SEAMLESS, kind_of_network, layout_of
from seamseg.config.sections import SECTIONS, Config
from seamseg.config.values import ValueProblem, format_value, hints_of, parse_value
from seamseg.extensions import RECIPES
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.files import read_text
from seamseg.utils.limits import CONFIG_BYTES, read_ini

_LAYOUT = (("body", "out_channels"), ("body", "out_strides"), ("fpn", "inputs"))
"""Keys whose values belong to one body."""

_OVERRIDES = "`overrides`"
"""Name of the overrides in errors."""

_Texts = dict[str, dict[str, str]]
"""Values by section and key."""


class _Layer(NamedTuple):
    """The values of a configuration, of one it builds on or of overrides; the folder is None for what has none."""

    given: _Texts
    source: str
    folder: Path | None


def load_config(path: str | Path, kind: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file of the user (docs/contract.md, section 2), and import the components that it names.

    The kind of network is the override `general.kind=`, else the file's `[general] kind`, else `kind`.
    Missing keys have the defaults of the kind, and so have keys that it ignores.

    Parameters
    ----------
    path : the INI file, or the bare name of a packaged experiment
    kind : kind of a file that does not name one; panoptic if None
    overrides : `section.key=value` each; `general.components` adds to the components of the file

    Raises
    ------
    InputError
        if the file is missing or cannot be read, a section, key or value is wrong, or a key has no effect
    """
    path = Path(path)
    # `Path.exists` raises an error for a name that no file can have
    if not os.path.exists(path):
        path = packaged(str(path)) or path
    return config_from_string(_read_text(path), kind, str(path), overrides, trusted=path.parent)


def config_from_string(
    text: str,
    kind: str | None = None,
    source: str = "config",
    overrides: Sequence[str] = (),
    trusted: Path | None = None,
    exported: bool = False,
) -> Config:
    """Read a configuration from INI text; `source` is its name in errors, other arguments as :func:`load_config`.

    The components that it names are imported only with `trusted`, the folder of a file of the user; components that
    overrides name always are. A model is not trusted: its sections of components that are not registered stay as
    :class:`NotLoaded`, and it must not build on another configuration. An `exported` network is not built from its
    configuration, and needs no components.
    """
    strict = trusted is not None
    layers = [_Layer(read_ini(text, source), source, trusted)]
    if layers[0].given.get("general", {}).get("base"):
        layers = _with_bases(layers)
    named = overrides or any(layer.given.get("general", {}).get("components") for layer in layers)
    loaded = load_components(overrides, layers, exported) if named else []
    layers = [layer._replace(given=_checked(layer.given, layer.source, strict)) for layer in layers]
    changes: _Texts = {}
    for override in overrides:
        section, key, value = split_override(override)
        ((name, values),) = _checked({section: {key: value}}, f"`overrides={override}`").items()
        changes.setdefault(name, {}).update(values)
    if changes.get("general", {}).get("base"):
        raise InputError("`overrides=general.base=...`: a base is named in a file: write one with [general] base")
    given, sources = _merged([*layers, _Layer(changes, _OVERRIDES, None)], kind or PANOPTIC)

    network = kind_of_network(given["general"]["kind"], given["general"].get("network", SEAMLESS))
    unused = [name for name in sources if name[0] in SECTIONS and not network.uses(*name)]
    ignored = {(section, key): given[section].pop(key) for section, key in unused if key in given[section]}
    texts = _with_defaults(given)
    # of a base, the sections of components that the configuration, or an override, replaces by others
    inherited = [name for name in texts if name not in {*SECTIONS, *layers[-1].given, *changes}]
    for of_kind, part in filter(None, map(components.parse_section, inherited)):
        if _chosen(texts, of_kind) not in (part, None):
            del texts[f"{of_kind} {part}"]
    for component in components.added_by(loaded) if loaded else ():
        if strict or components.KINDS[component.kind].evaluated:
            texts.setdefault(component.section, {})
    if loaded and (strict or "components" in changes.get("general", {})):
        texts["general"]["components"] = ", ".join(loaded)
    for section, key in [name for name, value in ignored.items() if value != texts[name[0]][name[1]]]:
        _check_ignored(section, key, ignored[section, key], texts, sources[section, key], layers)
    return _typed(texts, sources, f"{source} with {_OVERRIDES}" if changes else source, strict, exported)


def _read_text(path: Path, named_by: str = "") -> str:
    """Return the text of a configuration file; InputError, which begins with `named_by`, if it cannot be read."""
    if os.path.isdir(path):
        raise InputError(f"{named_by}{path}: is a folder, not a config file")
    if not os.path.exists(path):
        raise InputError(f"{named_by}{path}: no such config file{near_files(path)}")
    return read_text(path, "config file", CONFIG_BYTES)


def _with_bases(layers: list[_Layer]) -> list[_Layer]:
    """Return the configurations that one builds on, the first base first, and itself."""
    seen = {os.path.realpath(layers[0].source)}
    while base := layers[0].given.get("general", {}).pop("base", "").strip():
        names = f"{layers[0].source}: [general] base = {base:.80}: "
        if layers[0].folder is None:
            raise InputError(f"{names}a model must have a complete configuration")
        path = layers[0].folder / base
        if not os.path.exists(path):
            path = packaged(base) or path
        if os.path.realpath(path) in seen:
            raise InputError(f"{names}a configuration cannot build on itself")
        seen.add(os.path.realpath(path))
        layers.insert(0, _Layer(read_ini(_read_text(path, names), str(path)), str(path), path.parent))
    return layers


def _checked(given: _Texts, source: str, strict: bool = True) -> _Texts:
    """Return the values with the sections of components as `KIND NAME`; InputError for an unknown section or key.

    Components that are not imported are not checked: with `strict`, only those of the package that a process does not
    need.
    """
    found: _Texts = {}
    for section, values in given.items():
        part = components.parse_section(section)
        found.setdefault(section if part is None else " ".join(part), {}).update(values)
        if part is None and section not in SECTIONS:
            raise InputError(f"{source}: unknown section [{section:.80}]{_nearest(section, SECTIONS)}")
        if part is not None and not components.is_registered(*part):
            built_in = any(component.built_in for component in components.registered(part[0]))
            if not strict or (components.KINDS[part[0]].defaults and not built_in):
                continue
        cls = SECTIONS[section] if part is None else components.find(*part, where=f"{source}: [{section:.80}]: ").keys
        known = [spec.name for spec in fields(cls)]
        if unknown := next((key for key in values if key not in known), None):
            raise InputError(f"{source}: unknown key {unknown!r:.80} in [{section}]{_nearest(unknown, known, section)}")
    return found


def _merged(layers: Sequence[_Layer], kind: str) -> tuple[_Texts, dict[tuple[str, str], str]]:
    """Return the values of the last layer over the others, and the source of each by section and key.

    A layer that names another body does not inherit the layout of the last one, nor, unless it consists of overrides,
    its `body_params`. A layer of another kind has the weights of the losses of its own kind.
    """
    given: _Texts = {"general": {}, "body": {}}
    sources: dict[tuple[str, str], str] = {}
    for values, source, _ in layers:
        own_kind = values.get("general", {}).get("kind", kind)
        of_kind = next(spec for spec in fields(SECTIONS["general"]) if spec.name == "kind")
        _parsed(SECTIONS["general"], "general", of_kind, own_kind, source)  # refuses an unknown one
        body = values.get("body", {})
        replaced: tuple[tuple[str, str], ...] = ()
        if body.get("body", given["body"].get("body")) != given["body"].get("body"):
            replaced = _LAYOUT if source == _OVERRIDES else (*_LAYOUT, ("body", "body_params"))
        elif source == _OVERRIDES and "body_params" in body:
            replaced = _LAYOUT[:2]
        for section, key in replaced:
            given.get(section, {}).pop(key, None)
        if own_kind != kind:
            _convert_weights(given, kind, own_kind)
        for section, texts in values.items():
            given.setdefault(section, {}).update(texts)
            sources |= {(section, key): source for key in texts}
        kind = own_kind
    given["general"]["kind"] = kind
    return given, sources


def _with_defaults(given: _Texts) -> _Texts:
    """Return the values over the defaults of their kind of network, and of their network and body."""
    texts = {section: dict(values) for section, values in _defaults(given["general"]["kind"]).items()}
    network = given["general"].get("network", SEAMLESS)
    if network != SEAMLESS and components.is_registered("network", network):
        for name, value in getattr(components.find("network", network).make, "defaults", {}).items():
            section, _, key = name.partition(".")
            texts[section][key] = value
    for section, values in given.items():
        texts.setdefault(section, {}).update(values)
    try:
        params = parse_value(texts["body"]["body_params"], (dict[str, Any], False), {})
    except ValueProblem:
        params = {}  # an error when the section is read
    if layout := layout_of(texts["body"]["body"], params):
        values_of_body = (layout.out_channels, layout.out_strides, list(layout.inputs))
        for (section, key), value in zip(_LAYOUT, values_of_body):
            if key not in given.get(section, {}):
                texts[section][key] = json.dumps(value)
    return texts


def load_components(overrides: Sequence[str], files: Sequence[_Layer] = (), exported: bool = False) -> list[str]:
    """Import the components that overrides and files of the user name, and recipes that a model names; return names."""
    loaded = []
    for given, _, folder in files:
        names = given.get("general", {}).get("components", "").split(",")
        if folder is None:
            # a model names modules of this package only
            parts = [name.strip().rpartition(".") for name in names if not exported]
            names = ["".join(part) for part in parts if part[0] in RECIPES and part[2].isidentifier()]
            names = [name for name in names if find_spec(name) is not None]
        loaded += components.load(names, folder) if names else []
    for section, key, value in map(split_override, overrides):
        if (section, key) == ("general", "components"):
            loaded += components.load(value.split(","))
    return list(dict.fromkeys(loaded))


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise InputError for an override of an unknown section or key, before the configuration is at hand."""
    for override in overrides:
        section, key, value = split_override(override)
        if components.parse_section(section) is None:
            _checked({section: {key: value}}, f"`overrides={override}`")


def default_config(kind: str = PANOPTIC) -> Config:
    """Return the packaged defaults of a kind."""
    return config_from_string("", kind, f"defaults of {kind}")


def config_to_string(config: Config) -> str:
    """Return a whole configuration as INI text, as stored in snapshots.

    Keys that the original does not have are left out at their default, so that the original can read the text. Only
    configurations of other kinds than panoptic name their kind.
    """
    defaults = _defaults(config.general.kind)
    defaults = {**defaults, "general": {**defaults["general"], "kind": PANOPTIC}}
    texts: _Texts = {}
    for section, cls in SECTIONS.items():
        hints = hints_of(cls)
        texts[section] = {}
        for spec in fields(cls):
            value = getattr(getattr(config, section), spec.name)
            if spec.metadata["ours"] and value == parse_value(defaults[section][spec.name], hints[spec.name], {}):
                continue
            # as it was written, unless the value was replaced since
            text = config.texts[section][spec.name]
            same = value == parse_value(text, hints[spec.name], {})
            texts[section][spec.name] = text if same else format_value(value)
    for section, keys in config.parts.items():
        texts[section] = _texts_of(keys)
    lines = []
    for section, values in texts.items():
        lines += [f"[{section}]", *(f"{name} = {text}".replace("\n", "\n\t") for name, text in values.items()), ""]
    return "".join(f"{line}\n" for line in lines)


@cache
def _defaults(kind: str) -> _Texts:
    folder = resources.files("seamseg.config") / "defaults"
    texts: _Texts = {}
    for name in ("base.ini", f"{kind}.ini"):
        for section, values in read_ini((folder / name).read_text(encoding="utf-8"), name).items():
            texts.setdefault(section, {}).update(values)
    texts["general"]["kind"] = kind
    return texts


def _convert_weights(texts: _Texts, own: str, asked: str) -> None:
    """Select the weights of the losses of another kind, if there is a weight for each loss of the own kind."""
    text = texts.get("optimizer", {}).get("loss_weights")
    if text is None or not set(KINDS[asked].losses) <= set(KINDS[own].losses):
        return
    with suppress(ValueProblem):  # an error when the section is read
        weights = parse_value(text, (tuple[float, ...], False), {})
        if len(weights) == len(KINDS[own].losses) > len(KINDS[asked].losses):
            named = dict(zip(KINDS[own].losses, weights))
            texts["optimizer"]["loss_weights"] = format_value(tuple(named[loss] for loss in KINDS[asked].losses))


def _check_ignored(section: str, key: str, text: str, texts: _Texts, source: str, layers: Sequence[_Layer]) -> None:
    """Raise InputError for a value that the network of `texts` ignores and that was meant for it, if it changes one.

    A file may set what its own network uses and, if no file states a kind, what the original ignores as well.
    """
    cls = SECTIONS[section]
    spec = next(spec for spec in fields(cls) if spec.name == key)
    stated = [layer.given["general"]["kind"] for layer in layers if "kind" in layer.given.get("general", {})]
    network = layers[-1].given.get("general", {}).get("network", SEAMLESS)
    meant = source == _OVERRIDES
    if source == layers[-1].source and (stated or spec.metadata["ours"]):
        meant = not kind_of_network(stated[-1] if stated else PANOPTIC, network).uses(section, key)
    default = texts[section][key]
    differs = spec.metadata["component"] is not None or (
        _parsed(cls, section, spec, text, source) != _parsed(cls, section, spec, default, source)
    )
    if meant and differs:
        kind, network = texts["general"]["kind"], texts["general"]["network"]
        which = f"networks of kind {kind}" if network == SEAMLESS else f"the network {network}"
        raise InputError(f"{source}: [{section}] {key} has no effect on {which}: remove it")


def split_override(override: str) -> tuple[str, str, str]:
    """Return section, key and value of `section.key=value`; InputError for another text."""
    name, equals, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        example = "`overrides=optimizer.lr=0.02`"
        raise InputError(f"`overrides={override}`: write section.key=value, for example {example}")
    return section, key.lower(), value.strip()


def _typed(texts: _Texts, sources: dict[tuple[str, str], str], source: str, strict: bool, exported: bool) -> Config:
    """Return the configuration of the values, once it is checked as a whole."""
    sections, parts = {}, {}
    for name, cls in SECTIONS.items():
        values = {}
        for spec in fields(cls):
            text, kind, origin = (
                texts[name][spec.name],
                spec.metadata["component"],
                sources.get((name, spec.name), source),
            )
            if kind is None or text in spec.metadata["choices"]:
                values[spec.name] = _parsed(cls, name, spec, text, origin)
                continue
            values[spec.name] = text
            if components.is_registered(kind, text):
                texts.setdefault(components.find(kind, text).section, {})
            elif strict or (components.KINDS[kind].needed and not exported):
                where = f"{origin}: [{name}] {spec.name} = {text:.80}: "
                components.find(kind, text, spec.metadata["choices"], where)
        sections[name] = cls(**values)
    for name in [section for section in texts if section not in SECTIONS]:
        kind, part = components.parse_section(name) or ("", "")
        if not components.is_registered(kind, part):
            parts[name] = NotLoaded(texts[name])
            continue
        cls, given = components.find(kind, part).keys, texts[name]
        specs = [spec for spec in fields(cls) if spec.name in given]
        origins = [sources.get((name, spec.name), source) for spec in specs]
        parts[name] = cls(**{s.name: _parsed(cls, name, s, given[s.name], o) for s, o in zip(specs, origins)})
        if strict and (chosen := _chosen(texts, kind)) not in (part, None):
            key = components.KINDS[kind].key.replace(".", "] ")
            raise InputError(f"{source}: [{name}] has no effect: [{key} is {chosen}")
    config = Config(texts=texts, parts=parts, **sections)
    check(config, source)
    return config


def check(config: Config, source: str) -> None:
    """Raise InputError, prefixed by `source`, if keys contradict each other."""
    fpn, layout = config.fpn, layout_of(config.body.body, config.body.body_params)
    # without a layout, an exported network with a custom body
    known = fpn.inputs if layout is None else config.body.out_channels or layout.out_strides
    if unknown := [module for module in fpn.inputs if module not in known]:
        raise InputError(f"{source}: [fpn] inputs names {unknown[0]!r:.80}, which is not in [body] out_channels")
    given, levels = len(fpn.out_strides), len(fpn.inputs) + fpn.extra_scales
    if given != levels:
        made = f"inputs and extra_scales make {levels} levels"
        raise InputError(f"{source}: [fpn] out_strides has {given} values, {made}")
    for name in (part.removesuffix("_head") for part in config.parts_of_kind.modules if part.endswith("_head")):
        section = getattr(config, name)
        last = section.fpn_min_level + section.fpn_levels
        if last > levels:
            raise InputError(f"{source}: [{name}] fpn_min_level + fpn_levels = {last}, the pyramid has {levels} levels")


def _chosen(texts: _Texts, kind: str) -> str | None:
    """Return the component of a kind that a key names, without an argument; None for kinds that sections add."""
    section, _, key = components.KINDS[kind].key.partition(".")
    return texts[section][key].partition(":")[0] if key else None


def _parsed(cls: type, section: str, spec: Field[Any], text: str, origin: str) -> Any:
    try:
        return parse_value(text, hints_of(cls)[spec.name], spec.metadata)
    except ValueProblem as problem:
        shown = " ".join(text.split())
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise InputError(f"{origin}: [{section}] {spec.name} = {shown}: {problem}") from None


def _nearest(name: str, known: Iterable[str], section: str | None = None) -> str:
    """Return a suggestion: a near name, the section that has a key of this name, or the list of all names."""
    meant = did_you_mean(name.lower(), known)
    if meant:
        return meant
    homes = [s for s, cls in SECTIONS.items() if section is not None and name in {f.name for f in fields(cls)}]
    if homes:
        return f"; it belongs in {' or '.join(f'[{home}]' for home in homes)}"
    return f"; known are {', '.join(sorted(known))}"


def differences(old: Config, new: Config) -> list[str]:
    """Return each key whose values differ, as `section.key: old -> new`."""
    befores, afters = ({**{name: getattr(c, name) for name in SECTIONS}, **c.parts} for c in (old, new))
    found = []
    for section in dict.fromkeys([*befores, *afters]):
        if section not in befores or section not in afters:
            found.append(f"[{section}] {'removed' if section in befores else 'added'}")
            continue
        before, after = _texts_of(befores[section]), _texts_of(afters[section])
        for key in dict.fromkeys([*before, *after]):
            if (was := before.get(key, "")) != (now := after.get(key, "")):
                found.append(f"{section}.{key}: {was or 'empty'} -> {now or 'empty'}")
    return found


def _texts_of(keys: Any) -> dict[str, str]:
    """Return the values of a section as texts."""
    if isinstance(keys, NotLoaded):
        return dict(keys.texts)
    return {spec.name: format_value(getattr(keys, spec.name)) for spec in fields(keys)}


def check_training(config: Config, source: str | Path, overrides: Sequence[str] = ()) -> None:
    """Raise InputError if keys contradict each other that inference does not need; arguments as :func:`load_config`."""
    problem, rpn, roi, jitter = "", config.rpn, config.roi, config.dataloader.color_jitter
    given, losses = len(config.optimizer.loss_weights), config.parts_of_kind.losses
    if given != len(losses) and config.parts_of_kind.uses("optimizer", "loss_weights"):
        names = ", ".join(loss.removesuffix("_loss") for loss in losses)
        problem = (
            f"[optimizer] loss_weights has {given} values, {config.general.kind} has {len(losses)} losses ({names})"
        )
    elif rpn.neg_threshold > rpn.pos_threshold:
        problem = f"[rpn] neg_threshold {rpn.neg_threshold} is above pos_threshold {rpn.pos_threshold}"
    elif roi.neg_threshold_lo > roi.neg_threshold_hi:
        problem = f"[roi] neg_threshold_lo {roi.neg_threshold_lo} is above neg_threshold_hi {roi.neg_threshold_hi}"
    elif jitter is not None and jitter[3] > 0.5:
        problem = f"[dataloader] color_jitter: the hue, its last value, is at most 0.5 turns, got {jitter[3]}"
    if problem:
        raise InputError(f"{source}{' with `overrides`' if overrides else ''}: {problem}")
