"""INI files to a typed :class:`Config`: the user's file over the packaged defaults, overrides over both."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from seamseg.config import components
from seamseg.config.bodies import layout_of
from seamseg.config.checks import check, raise_first
from seamseg.config.components import NotLoaded
from seamseg.config.experiments import packaged
from seamseg.config.ini import Layer, Texts, layers_of, read_text
from seamseg.config.kinds import KINDS, PANOPTIC, SEAMLESS, kind_of_network
from seamseg.config.sections import SECTIONS, Config
from seamseg.config.values import ValueProblem, format_value, hints_of, parse_value
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.limits import read_ini

_RECIPE = re.escape(components.RECIPES) + "(?!py$)[a-z_]+"
"""Modules of components of this package; a name with `.py` would be that of a file."""

_OF_BODY = (("body", "body_params"), ("body", "out_channels"), ("body", "out_strides"), ("fpn", "inputs"))
"""Keys whose values belong to one body."""


def load_config(path: str | Path, kind: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file of the user (docs/contract.md, section 2), and import the components that it names.

    The kind of network is that of the override `general.kind=`, else of the file's `[general] kind`, else `kind`.
    Missing keys have the defaults of the kind, and so have keys that it ignores.

    Parameters
    ----------
    path : the INI file, or the bare name of a packaged experiment
    kind : kind of a file that does not name one; panoptic if None
    overrides : `section.key=value` each; those of `general.components` add to the components of the file

    Raises
    ------
    InputError
        if the file is missing or cannot be read, a section, key or value is wrong, or a key has no effect
    """
    path = Path(path)
    # `Path.exists` raises an error for a name that no file can have
    if not os.path.exists(path):
        path = packaged(str(path)) or path
    return config_from_string(read_text(path), kind, str(path), overrides, trusted=path.parent)


def config_from_string(
    text: str,
    kind: str | None = None,
    source: str = "config",
    overrides: Sequence[str] = (),
    trusted: Path | None = None,
    exported: bool = False,
) -> Config:
    """Read a configuration from INI text; `source` is its name in errors, other arguments as :func:`load_config`.

    The components that it names are imported only with `trusted`, the folder of a file of the user; those of overrides
    always are. A model is not trusted: its sections of components that are not registered stay as they are, see
    :class:`NotLoaded`, and it must not build on another configuration. That of an `exported` network needs no
    components: the network is not built from it.
    """
    layers = layers_of(Layer(read_ini(text, source), source, trusted))
    given, sources = _adapt_bases(layers, kind or PANOPTIC)
    changes = [(override, *split_override(override)) for override in overrides]
    loaded = _load_components(layers, changes, exported)
    strict = trusted is not None
    own = given.get("general", {}).get("kind", kind or PANOPTIC)
    asked = [value for _, section, key, value in changes if (section, key) == ("general", "kind")]
    kind_is_from = "`overrides`" if asked else source
    texts = {section: dict(values) for section, values in _defaults(asked[-1] if asked else own, kind_is_from).items()}
    for name, value in _defaults_of_network(given, changes).items():
        section, _, key = name.partition(".")
        texts[section][key] = value
    for layer in layers:
        for section, values in layer.given.items():
            _merge(texts, section, values, layer.source, strict)
    texts["general"]["kind"] = own
    if asked:
        _convert_weights(texts, own, asked[-1])
    origins: dict[tuple[str, str], str] = {}
    for override, section, key, value in changes:
        _merge(texts, section, {key: value}, f"`overrides={override}`")
        origins[section, key] = "`overrides`"
    if texts["general"]["base"]:
        raise InputError("`overrides=general.base=...`: a base is named in a file: write one with [general] base")
    _drop_replaced(texts, layers, origins)
    for component in components.added_by(loaded):
        if strict or components.KINDS[component.kind].evaluated:
            texts.setdefault(component.section, {})
    if loaded and (strict or ("general", "components") in origins):
        texts["general"]["components"] = ", ".join(loaded)
    _describe_body(texts, given, origins)
    _reset_ignored(texts, layers[-1].given, origins, source)
    whole = f"{source} with `overrides`" if origins else source
    return _typed(texts, source, {**sources, **origins}, strict, whole, exported)


def _defaults_of_network(given: Texts, changes: Sequence[tuple[str, str, str, str]]) -> Mapping[str, str]:
    """Return the defaults that differ for `[general] network`, by `section.key`."""
    asked = [value for _, section, key, value in changes if (section, key) == ("general", "network")]
    name = [given.get("general", {}).get("network", SEAMLESS), *asked][-1]
    if name == SEAMLESS or not components.is_registered("network", name):
        return {}
    return dict(getattr(components.find("network", name).make, "defaults", {}))


def _adapt_bases(layers: Sequence[Layer], kind: str) -> tuple[Texts, dict[tuple[str, str], str]]:
    """Remove from bases what belongs to their body if another is named, and convert loss weights to another kind.

    Returns
    -------
    the values of all layers, and the names of their files by (section, key)
    """
    given: Texts = {}
    sources: dict[tuple[str, str], str] = {}
    for number, layer in enumerate(layers):
        own = layer.given.get("general", {}).get("kind")
        body = layer.given.get("body", {}).get("body", given.get("body", {}).get("body"))
        other_body = body != given.get("body", {}).get("body")
        for base in layers[:number]:
            if own not in (None, kind) and own in KINDS and "loss_weights" in base.given.get("optimizer", {}):
                _convert_weights(base.given, kind, own)
            for section, key in _OF_BODY if other_body else ():
                base.given.get(section, {}).pop(key, None)
                given.get(section, {}).pop(key, None)
        for section, values in layer.given.items():
            given.setdefault(section, {}).update(values)
            sources |= dict.fromkeys(((section, key) for key in values), layer.source)
        kind = own or kind
    # a file that names no kind has that of its base
    if len(layers) > 1 and "kind" in given.get("general", {}):
        layers[-1].given.setdefault("general", {})["kind"] = kind
    return given, sources


def _drop_replaced(texts: Texts, layers: Sequence[Layer], changed: Iterable[tuple[str, str]]) -> None:
    """Remove the sections of components of a base that the configuration, or an override, replaces by others."""
    own = {components.parse_section(section) for section in [*layers[-1].given, *(section for section, _ in changed)]}
    for section in [section for section in texts if section not in SECTIONS]:
        kind, name = found = components.parse_section(section) or ("", "")
        chooser, _, key = components.KINDS[kind].key.partition(".")
        if len(layers) > 1 and key and found not in own and texts[chooser][key] != name:
            del texts[section]


def _load_components(
    layers: Sequence[Layer], changes: Sequence[tuple[str, str, str, str]], exported: bool = False
) -> list[str]:
    """Import the components that the user names, and those of this package that a model names; return their names."""
    loaded = []
    for given, _, folder in layers:
        names = given.get("general", {}).get("components", "").split(",")
        if folder is None:
            names = (
                []
                if exported
                else [name for name in map(str.strip, names) if re.fullmatch(_RECIPE, name) and components.recipe(name)]
            )
        loaded += components.load(names, folder)
    asked = [value for _, section, key, value in changes if (section, key) == ("general", "components")]
    return list(dict.fromkeys([*loaded, *components.load(",".join(asked).split(","))]))


def keys_of(kind: str, name: str, overrides: Sequence[str]) -> Any:
    """Return the keys of an imported component that the overrides set, else its defaults."""
    component = components.find(kind, name)
    of_section = [override for override in overrides if split_override(override)[0] == component.section]
    return config_from_string("", None, "", of_section).parts.get(component.section, component.keys())


def load_components(overrides: Sequence[str]) -> None:
    """Import the components that overrides of `general.components` name."""
    _load_components([], [(text, *split_override(text)) for text in overrides])


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise InputError for an override of an unknown section or key, before the configuration is at hand."""
    for override in overrides:
        section, key, value = split_override(override)
        if components.parse_section(section) is None:
            _merge({name: {} for name in SECTIONS}, section, {key: value}, f"`overrides={override}`")


def default_config(kind: str = PANOPTIC) -> Config:
    """Return the packaged defaults of a kind."""
    return config_from_string("", kind, f"defaults of {kind}")


def config_to_string(config: Config) -> str:
    """Return a whole configuration as INI text, as stored in snapshots.

    Keys that the original does not have are left out at their default, so that the original can read the text. Only
    those of other kinds than panoptic name their kind.
    """
    defaults = _defaults(config.kind)
    defaults = {**defaults, "general": {**defaults["general"], "kind": PANOPTIC}}
    texts: Texts = {}
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
        texts[section] = dict(keys.texts) if isinstance(keys, NotLoaded) else _formatted(keys)
    lines = []
    for section, values in texts.items():
        lines += [f"[{section}]", *(f"{name} = {text}".replace("\n", "\n\t") for name, text in values.items()), ""]
    return "".join(f"{line}\n" for line in lines)


def _formatted(keys: Any) -> dict[str, str]:
    return {spec.name: format_value(getattr(keys, spec.name)) for spec in fields(keys)}


def _defaults(kind: str, source: str = "config") -> Texts:
    if kind not in KINDS:
        raise InputError(f"{source}: unknown kind of network {kind!r:.80}: choose {', '.join(KINDS)}")
    return _read_defaults(kind)


@cache
def _read_defaults(kind: str) -> Texts:
    folder = resources.files("seamseg.config") / "defaults"
    texts: Texts = {}
    for name in ("base.ini", f"{kind}.ini"):
        for section, values in read_ini((folder / name).read_text(encoding="utf-8"), name).items():
            texts.setdefault(section, {}).update(values)
    texts["general"]["kind"] = kind
    return texts


def _merge(texts: Texts, section: str, values: Mapping[str, str], source: str, strict: bool = True) -> None:
    part = components.parse_section(section)
    if part is not None:
        section = " ".join(part)
        texts.setdefault(section, {})
        if not components.is_registered(*part) and (not strict or components.stays_text(part[0])):
            texts[section] |= values
            return
    elif section not in SECTIONS:
        raise InputError(f"{source}: unknown section [{section:.80}]{_nearest(section, SECTIONS)}")
    known = {f.name for f in fields(_section_class(section, source))}
    for key, value in values.items():
        if key not in known:
            raise InputError(f"{source}: unknown key {key!r:.80} in [{section}]{_nearest(key, known, section)}")
        texts[section][key] = value


def _convert_weights(texts: Texts, own: str, asked: str) -> None:
    """Select the weights of the losses of another kind, if the text has those of its own kind, which include them."""
    if own not in KINDS or any(loss not in KINDS[own].losses for loss in KINDS[asked].losses):
        return
    text = texts["optimizer"]["loss_weights"]
    try:
        weights = parse_value(text, tuple[float, ...], {})
    except ValueProblem:
        return
    if len(weights) == len(KINDS[own].losses) > len(KINDS[asked].losses):
        named = dict(zip(KINDS[own].losses, weights))
        texts["optimizer"]["loss_weights"] = format_value(tuple(named[loss] for loss in KINDS[asked].losses))


def _describe_body(texts: Texts, given: Texts, changes: Iterable[tuple[str, str]]) -> None:
    """Fill in the channels, strides and inputs of the body, unless they are given for it."""
    name, changed = texts["body"]["body"], set(changes)
    written = set(changed)
    try:
        params = parse_value(texts["body"]["body_params"], dict[str, Any], {})
    except ValueProblem:
        params = {}  # an error when the section is read
    if (layout := layout_of(name, params)) is None:
        return
    # those of a file belong to the body that it names
    if name == given.get("body", {}).get("body") or ("body", "body") not in changed:
        written |= {(section, key) for section, values in given.items() for key in values}
    if ("body", "body_params") in changed:  # other channels and strides than those of the file
        written -= {("body", "out_channels"), ("body", "out_strides")} - changed
    for (section, key), text in layout.texts().items():
        if (section, key) not in written:
            texts[section][key] = text


def _reset_ignored(texts: Texts, given: Texts, changed: Mapping[tuple[str, str], str], source: str) -> None:
    """Set keys that the kind of network ignores to their defaults; refuse those that were set for this kind.

    Not refused are keys that the kind of the file uses, which is panoptic if it names none, and keys of the original in
    a file that names no kind: the original ignores them as well.

    Parameters
    ----------
    texts : changed in place
    given : the file
    changed : names of the overrides by (section, key)
    source : name of the file in errors
    """
    kind, named = texts["general"]["kind"], given.get("general", {}).get("kind")
    network, own = texts["general"]["network"], given.get("general", {}).get("network", SEAMLESS)
    of_file = kind_of_network(named or PANOPTIC, own) if (named or PANOPTIC) in KINDS else None
    uses = kind_of_network(kind, network).uses
    defaults = {section: dict(values) for section, values in _defaults(kind).items()}
    defaults["body"] |= {key: texts["body"][key] for key in ("body", "body_params")}
    _describe_body(defaults, {}, ())
    for section, spec in _keys():
        if uses(section, spec.name):
            continue
        origin = changed.get((section, spec.name))
        if origin is None and spec.name in given.get(section, {}) and (named or spec.metadata["ours"]):
            origin = None if of_file is None or of_file.uses(section, spec.name) else source
        text, default = texts[section][spec.name], defaults[section][spec.name]
        is_set = text != default and (
            spec.metadata["component"] is not None
            or _parsed(section, spec, text, origin or source) != _parsed(section, spec, default, source)
        )
        if is_set and origin is not None:
            which = f"networks of kind {kind}" if network == SEAMLESS else f"the network {network}"
            raise InputError(f"{origin}: [{section}] {spec.name} has no effect on {which}: remove it")
        texts[section][spec.name] = default


def split_override(override: str) -> tuple[str, str, str]:
    """Return section, key and value of `section.key=value`; InputError for another text."""
    name, equals, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        example = "`overrides=optimizer.lr=0.02`"
        raise InputError(f"`overrides={override}`: write section.key=value, for example {example}")
    return section, key.lower(), value.strip()


def _typed(
    texts: Texts, source: str, origins: Mapping[tuple[str, str], str], strict: bool, whole: str, exported: bool
) -> Config:
    sections, parts = {}, {}
    for name, cls in SECTIONS.items():
        values = {}
        for spec in fields(cls):
            origin = origins.get((name, spec.name), source)
            text = texts[name][spec.name]
            if (kind := spec.metadata["component"]) is not None and text not in spec.metadata["choices"]:
                needed = strict or (components.KINDS[kind].needed and not exported)
                values[spec.name] = _component_name(kind, name, spec, text, origin, needed)
                if components.is_registered(kind, text):
                    texts.setdefault(components.find(kind, text).section, {})
            else:
                values[spec.name] = _parsed(name, spec, text, origin)
        sections[name] = cls(**values)
    for name in [section for section in texts if section not in SECTIONS]:
        kind, part = components.parse_section(name) or ("", "")
        if not components.is_registered(kind, part):
            parts[name] = NotLoaded(texts[name])
            continue
        cls = components.find(kind, part).keys
        parts[name] = cls(
            **{
                spec.name: _parsed(name, spec, texts[name][spec.name], origins.get((name, spec.name), source))
                for spec in fields(cls)
                if spec.name in texts[name]
            }
        )
    config = Config(texts=texts, parts=parts, **sections)
    if strict:
        raise_first(whole, [_unused_parts(config)])
    check(config, whole)
    return config


def _component_name(kind: str, section: str, spec: Field[typing.Any], text: str, origin: str, strict: bool) -> str:
    if strict:
        try:
            components.find(kind, text, spec.metadata["choices"])
        except InputError as error:
            raise InputError(f"{origin}: [{section}] {spec.name} = {text:.80}: {error}") from None
    return text


def _unused_parts(config: Config) -> str | None:
    for section in config.parts:
        kind, name = components.parse_section(section) or ("", "")
        if (key := components.KINDS[kind].key) and name != (chosen := config.chosen(kind)):
            return f"[{section}] has no effect: [{key.replace('.', '] ')} is {chosen}"
    return None


def _section_class(section: str, source: str) -> type:
    part = components.parse_section(section)
    if part is None:
        return SECTIONS[section]
    try:
        return components.find(*part).keys
    except InputError as error:
        raise InputError(f"{source}: [{section:.80}]: {error}") from None


def _keys() -> Iterator[tuple[str, Field[typing.Any]]]:
    for section, cls in SECTIONS.items():
        yield from ((section, spec) for spec in fields(cls))


def _parsed(section: str, spec: Field[typing.Any], text: str, origin: str) -> typing.Any:
    try:
        return parse_value(text, hints_of(_section_class(section, origin))[spec.name], spec.metadata)
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
        before, after = (_texts_of(sections.get(section)) for sections in (befores, afters))
        if before is None or after is None:
            found.append(f"[{section}] {'added' if before is None else 'removed'}")
            continue
        for key in dict.fromkeys([*before, *after]):
            if (was := before.get(key, "")) != (now := after.get(key, "")):
                found.append(f"{section}.{key}: {was or 'empty'} -> {now or 'empty'}")
    return found


def _texts_of(keys: Any) -> Mapping[str, str] | None:
    return keys.texts if isinstance(keys, NotLoaded) else _formatted(keys) if keys is not None else None
