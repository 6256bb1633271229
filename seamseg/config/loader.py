"""INI files to a typed :class:`Config`: the user's file over the packaged defaults, overrides over both."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
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
    files = [_Layer(read_ini(text, source), source, trusted)]
    if files[0].given.get("general", {}).get("base"):
        files = _with_bases(files)
    loaded = load_components(overrides, files, exported)
    files = [layer._replace(given=_checked(layer.given, layer.source, strict)) for layer in files]
    changes: _Texts = {}
    for override in overrides:
        section, key, value = split_override(override)
        for name, values in _checked({section: {key: value}}, f"`overrides={override}`").items():
            changes.setdefault(name, {}).update(values)
    if changes.get("general", {}).get("base"):
        raise InputError("`overrides=general.base=...`: a base is named in a file: write one with [general] base")
    texts = _with_defaults(_merged([*files, _Layer(changes, _OVERRIDES, None)], kind or PANOPTIC))

    own = dict(files[-1].given)
    if stated := [layer.given["general"]["kind"] for layer in files if "kind" in layer.given.get("general", {})]:
        # a file without a kind has the kind of its base
        own["general"] = {**own.get("general", {}), "kind": stated[-1]}
    if len(files) > 1:
        _drop_replaced(texts, {*own, *changes})
    for component in components.added_by(loaded) if loaded else ():
        if strict or components.KINDS[component.kind].evaluated:
            texts.setdefault(component.section, {})
    if loaded and (strict or "components" in changes.get("general", {})):
        texts["general"]["components"] = ", ".join(loaded)
    _reset_ignored(texts, own, changes, source)
    return _typed(texts, f"{source} with {_OVERRIDES}" if changes else source, changes, strict, exported)


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
    """Return the values with the sections of components as `KIND NAME`; InputError for a wrong section, key or value.

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
        specs = {spec.name: spec for spec in fields(cls)}
        for key, text in values.items():
            if key not in specs:
                raise InputError(f"{source}: unknown key {key!r:.80} in [{section}]{_nearest(key, specs, section)}")
            if not specs[key].metadata.get("component"):
                _parsed(cls, section, specs[key], text, _OVERRIDES if source.startswith("`") else source)
    return found


def _merged(layers: Sequence[_Layer], kind: str) -> _Texts:
    """Return the values of the last layer over the others.

    A layer that names another body does not inherit the layout of the last one, nor, unless it consists of overrides,
    its `body_params`. It has the weights of the losses of its own kind.
    """
    given: _Texts = {"general": {}, "body": {}}
    for values, source, _ in layers:
        own_kind = values.get("general", {}).get("kind", kind)
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
        kind = own_kind
    given["general"]["kind"] = kind
    return given


def _with_defaults(given: _Texts) -> _Texts:
    """Return the values over the defaults of their kind of network, and of their network and body."""
    merged = {section: dict(values) for section, values in _defaults(given["general"]["kind"]).items()}
    network = given["general"].get("network", SEAMLESS)
    if network != SEAMLESS and components.is_registered("network", network):
        for name, value in getattr(components.find("network", network).make, "defaults", {}).items():
            section, _, key = name.partition(".")
            merged[section][key] = value
    for section, values in given.items():
        merged.setdefault(section, {}).update(values)
    for (section, key), text in _layout_texts(merged).items():
        if key not in given.get(section, {}):
            merged[section][key] = text
    return merged


def _layout_texts(texts: _Texts) -> dict[tuple[str, str], str]:
    """Return channels, strides and inputs of the body by (section, key); empty if they are not known."""
    try:
        params = parse_value(texts["body"]["body_params"], dict[str, Any], {})
    except ValueProblem:
        params = {}  # an error when the section is read
    layout = layout_of(texts["body"]["body"], params)
    if layout is None:
        return {}
    values = (layout.out_channels, layout.out_strides, list(layout.inputs))
    return dict(zip(_LAYOUT, map(json.dumps, values)))


def _drop_replaced(texts: _Texts, own: Collection[str]) -> None:
    """Remove the sections of components of a base that the configuration, or an override, replaces by others."""
    for section in [section for section in texts if section not in SECTIONS and section not in own]:
        kind, name = components.parse_section(section) or ("", "")
        chooser, _, key = components.KINDS[kind].key.partition(".")
        if key and texts[chooser][key] != name:
            del texts[section]


def load_components(overrides: Sequence[str], files: Sequence[_Layer] = (), exported: bool = False) -> list[str]:
    """Import the components that overrides and files of the user name, and recipes that a model names; return names."""
    loaded = []
    for given, _, folder in files:
        names = list(filter(None, map(str.strip, given.get("general", {}).get("components", "").split(","))))
        if folder is None:
            # a model names modules of this package only
            names = [name for name in names if not exported and _is_recipe(name)]
        loaded += components.load(names, folder) if names else []
    changes = map(split_override, overrides)
    asked = [value for section, key, value in changes if (section, key) == ("general", "components")]
    loaded += components.load(",".join(asked).split(",")) if asked else []
    return list(dict.fromkeys(loaded))


def _is_recipe(name: str) -> bool:
    """Return whether a name belongs to a module of a package in :data:`RECIPES`; a name with `.py` is a file."""
    package, _, module = name.rpartition(".")
    return package in RECIPES and module.isidentifier() and module != "py" and find_spec(name) is not None


def keys_of(kind: str, name: str, overrides: Sequence[str]) -> Any:
    """Return the keys of an imported component that the overrides set, else its defaults."""
    component = components.find(kind, name)
    of_section = [override for override in overrides if split_override(override)[0] == component.section]
    if not of_section:
        return component.keys()
    return config_from_string("", None, "", of_section).parts.get(component.section, component.keys())


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
    defaults = _defaults(config.kind)
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
    weights = parse_value(text, tuple[float, ...], {})
    if len(weights) == len(KINDS[own].losses) > len(KINDS[asked].losses):
        named = dict(zip(KINDS[own].losses, weights))
        texts["optimizer"]["loss_weights"] = format_value(tuple(named[loss] for loss in KINDS[asked].losses))


def _reset_ignored(texts: _Texts, file: _Texts, changes: _Texts, source: str) -> None:
    """Set keys that the network ignores to their defaults; InputError for those that `file` or an override has set."""
    kind, network = texts["general"]["kind"], texts["general"]["network"]
    uses = kind_of_network(kind, network).uses
    defaults = {section: dict(values) for section, values in _defaults(kind).items()}
    defaults["body"] |= {key: texts["body"][key] for key in ("body", "body_params")}
    for (section, key), text in _layout_texts(defaults).items():
        defaults[section][key] = text
    for section, cls in SECTIONS.items():
        for spec in fields(cls):
            text, default = texts[section][spec.name], defaults[section][spec.name]
            if uses(section, spec.name) or text == default:
                continue
            changed = spec.name in changes.get(section, {})
            origin = _OVERRIDES if changed else source
            is_set = spec.metadata["component"] is not None or (
                _parsed(cls, section, spec, text, origin) != _parsed(cls, section, spec, default, source)
            )
            if is_set and (changed or _is_refused(file, section, spec)):
                which = f"networks of kind {kind}" if network == SEAMLESS else f"the network {network}"
                raise InputError(f"{origin}: [{section}] {spec.name} has no effect on {which}: remove it")
            texts[section][spec.name] = default


def _is_refused(file: _Texts, section: str, spec: Field[Any]) -> bool:
    """Return whether a file sets a key that its own network ignores; not those that the original ignores as well."""
    general = file.get("general", {})
    kind = general.get("kind", PANOPTIC)
    if kind not in KINDS or spec.name not in file.get(section, {}) or not ("kind" in general or spec.metadata["ours"]):
        return False
    return not kind_of_network(kind, general.get("network", SEAMLESS)).uses(section, spec.name)


def split_override(override: str) -> tuple[str, str, str]:
    """Return section, key and value of `section.key=value`; InputError for another text."""
    name, equals, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        example = "`overrides=optimizer.lr=0.02`"
        raise InputError(f"`overrides={override}`: write section.key=value, for example {example}")
    return section, key.lower(), value.strip()


def _typed(texts: _Texts, source: str, changes: _Texts, strict: bool, exported: bool) -> Config:
    """Return the configuration of the values, once it is checked as a whole."""
    sections, parts = {}, {}
    for name, cls in SECTIONS.items():
        values = {}
        for spec in fields(cls):
            text, kind = texts[name][spec.name], spec.metadata["component"]
            if kind is None or text in spec.metadata["choices"]:
                values[spec.name] = _parsed(cls, name, spec, text, source)
                continue
            values[spec.name] = text
            if components.is_registered(kind, text):
                texts.setdefault(components.find(kind, text).section, {})
            elif strict or (components.KINDS[kind].needed and not exported):
                where = f"{source}: [{name}] {spec.name} = {text:.80}: "
                components.find(kind, text, spec.metadata["choices"], where)
        sections[name] = cls(**values)
    for name in [section for section in texts if section not in SECTIONS]:
        kind, part = components.parse_section(name) or ("", "")
        if not components.is_registered(kind, part):
            parts[name] = NotLoaded(texts[name])
            continue
        cls, given = components.find(kind, part).keys, texts[name]
        specs = [spec for spec in fields(cls) if spec.name in given]
        parts[name] = cls(**{spec.name: _parsed(cls, name, spec, given[spec.name], source) for spec in specs})
    config = Config(texts=texts, parts=parts, **sections)
    for name in parts if strict else ():
        kind, part = components.parse_section(name) or ("", "")
        if (key := components.KINDS[kind].key) and part != (chosen := config.chosen(kind)):
            raise InputError(f"{source}: [{name}] has no effect: [{key.replace('.', '] ')} is {chosen}")
    check(config, source)
    return config


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
    for name in config.parts_of_kind.heads:
        section = getattr(config, name)
        last = section.fpn_min_level + section.fpn_levels
        if last > levels:
            raise InputError(f"{source}: [{name}] fpn_min_level + fpn_levels = {last}, the pyramid has {levels} levels")


def check_training(config: Config, source: str | Path, overrides: Sequence[str] = ()) -> None:
    """Raise InputError if keys contradict each other that inference does not need; arguments as :func:`load_config`."""
    problem, rpn, roi, jitter = "", config.rpn, config.roi, config.dataloader.color_jitter
    given, losses = len(config.optimizer.loss_weights), config.parts_of_kind.losses
    if given != len(losses) and config.parts_of_kind.uses("optimizer", "loss_weights"):
        names = ", ".join(loss.removesuffix("_loss") for loss in losses)
        problem = f"[optimizer] loss_weights has {given} values, {config.kind} has {len(losses)} losses ({names})"
    elif rpn.neg_threshold > rpn.pos_threshold:
        problem = f"[rpn] neg_threshold {rpn.neg_threshold} is above pos_threshold {rpn.pos_threshold}"
    elif roi.neg_threshold_lo > roi.neg_threshold_hi:
        problem = f"[roi] neg_threshold_lo {roi.neg_threshold_lo} is above neg_threshold_hi {roi.neg_threshold_hi}"
    elif jitter is not None and jitter[3] > 0.5:
        problem = f"[dataloader] color_jitter: the hue, its last value, is at most 0.5 turns, got {jitter[3]}"
    if problem:
        raise InputError(f"{source}{' with `overrides`' if overrides else ''}: {problem}")
