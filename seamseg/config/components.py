"""Components: named parts of a network, a training or an evaluation, built in or from a module or file of the user.

A component is a class or function that a decorator of :mod:`seamseg.components` registers under a kind and a name, with
a frozen dataclass of its keys (docs/how-to/extend.md). Modules and files are imported only if the user names them,
never because they are installed or a model names them, except those of `seamseg.recipes`. The parts of the package
that use a kind register its built-in components.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from seamseg.config.values import declaration_problem
from seamseg.utils.component_errors import described, file_of, misspelt
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError, did_you_mean
from seamseg.utils.output import warn

API = 1
"""Version of the interface; one that breaks components gets another number."""

RECIPES = "seamseg.recipes."
"""Beginning of the names of modules of this package that a configuration names to use their components."""


@dataclass(frozen=True)
class ComponentKind:
    """What a component may be.

    Attributes
    ----------
    what : a line for `seamseg components`
    key : `section.key` of the configuration that chooses one by its name; empty if any number may be used, one for each
        section `[KIND NAME]` of the configuration
    evaluated : whether an evaluation uses it although the configuration of the model does not name it
    chosen : whether it is used where an option names it, not because of its section
    needed : a model that has one does not open without it
    defaults : whether it has built-in components that are only imported where they are used; elsewhere their sections
        are not checked
    """

    what: str
    key: str = ""
    evaluated: bool = False
    chosen: bool = False
    needed: bool = False
    defaults: bool = False


KINDS: dict[str, ComponentKind] = {
    "augmentation": ComponentKind("changes the colours of a training image"),
    "body": ComponentKind("backbone of the network", "body.body", needed=True),
    "callback": ComponentKind("follows a training, such as a logger, and may end it", defaults=True),
    "head": ComponentKind("head of the network, with losses and output maps"),
    "format": ComponentKind("output format of predict, which its option names", chosen=True, defaults=True),
    "loss": ComponentKind("loss of the semantic head", "sem.loss"),
    "metric": ComponentKind("metric of a validation, which may select the best snapshot", evaluated=True),
    "network": ComponentKind("network as a whole, with its losses", "general.network", needed=True),
    "optimizer": ComponentKind("updates the weights", "optimizer.type"),
    "reader": ComponentKind("reads a data set", "dataloader.reader"),
    "scheduler": ComponentKind("learning rate over time", "scheduler.type"),
}
"""The kinds of components by name."""


def parse_section(section: str) -> tuple[str, str] | None:
    """Return kind and name of the component that a section of a configuration is for; None for other sections."""
    kind, space, name = section.partition(" ")
    return (kind, name.strip()) if space and kind in KINDS else None


@dataclass(frozen=True)
class NoKeys:
    """The keys of a component without any."""


@dataclass(frozen=True)
class Component:
    """A registered component.

    Attributes
    ----------
    kind, name : its kind and its name in a configuration
    make : the class or function
    keys : frozen dataclass of its keys, those of the section `[KIND NAME]`
    module, file : name and file of the module that registers it
    sha256 : SHA-256 of the file when that was imported; empty for those of this package
    """

    kind: str
    name: str
    make: Callable[..., Any]
    keys: type
    module: str
    file: Path
    sha256: str = ""

    @property
    def section(self) -> str:
        """Section of its keys."""
        return f"{self.kind} {self.name}"

    @property
    def built_in(self) -> bool:
        """Whether it is part of this package."""
        return self.module.partition(".")[0] == "seamseg"

    def build(self, *arguments: Any) -> Any:
        """Call :attr:`make`; its exceptions become an InputError with the component, its file and the line."""
        try:
            return self.make(*arguments)
        except Exception as error:
            if isinstance(error, SeamsegError) or lacks_memory(error):
                raise
            raise InputError(f"{self.section}{described(error, str(self.file))}") from error


@dataclass(frozen=True)
class NotLoaded:
    """The section of a component that is not imported: its values `texts` as written."""

    texts: dict[str, str]


Made = TypeVar("Made", bound=Callable[..., Any])
_REGISTERED: dict[tuple[str, str], Component] = {}


def register(kind: str, name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Return a decorator that registers a class or function.

    Parameters
    ----------
    kind : kind of the component, one of :data:`KINDS`
    name : name in the configuration: lower-case letters, digits and underscores; in that of a format also hyphens
    keys : frozen dataclass whose fields are declared with :func:`seamseg.config.sections.key`, each with a default

    Raises
    ------
    InputError
        if the name is not one, the keys are not declared, or another component has the name
    """
    plain = name.replace("-", "_") if KINDS[kind].chosen else name
    if not (plain.isascii() and plain.isidentifier() and plain == plain.lower()):
        raise InputError(f"{kind} {name!r:.80}: a name has lower-case letters, digits and underscores, no digit first")
    if not (is_dataclass(keys) and keys.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise InputError(f"{kind} {name}: its keys {keys.__name__} must be a dataclass with frozen=True")
    for spec in fields(keys):
        if problem := declaration_problem(spec, keys):
            raise InputError(f"{kind} {name}: {spec.name} of {keys.__name__}: {problem}")

    def decorate(made: Made) -> Made:
        component = Component(kind, name, made, keys, made.__module__, Path(str(file_of(made.__module__))))
        if not component.built_in:
            component = replace(component, sha256=_checksum(component.file))
            if doubt := misspelt(made):
                warn(f"{component.section} ({component.file}): {doubt}", stacklevel=2)
        other = _REGISTERED.setdefault((kind, name), component)
        if other.module != component.module or other.make.__qualname__ != made.__qualname__:
            raise InputError(f"another {kind} {name} is in {other.file}: rename one")
        _REGISTERED[kind, name] = component
        return made

    return decorate


def load(names: Iterable[str], folder: Path | None = None) -> list[str]:
    """Import modules and files of components, unless they are imported; files again if they have changed.

    Parameters
    ----------
    names : modules that Python finds (`package.module`), and files (`*.py`)
    folder : folder of the configuration that names them, where files are searched before the working directory

    Returns
    -------
    the names, files as absolute paths

    Raises
    ------
    InputError
        if one is missing, or fails
    """
    loaded = []
    for name in filter(None, map(str.strip, names)):
        path = None
        if name.endswith(".py"):
            candidates = [Path(folder or "", name), Path(name)]
            path = next((p.resolve() for p in candidates if p.is_file()), None)
            if path is None:
                raise InputError(f"components: {name}: no such file")
        try:
            _import_file(path) if path is not None else importlib.import_module(name)
        except InputError as error:
            raise InputError(f"components: {path or name}: {error}") from error
        except (Exception, SystemExit) as error:
            where = f": {name}{described(error, None)}" if path is None else described(error, str(path))
            raise InputError(f"components{where}") from error
        loaded.append(str(path or name))
    return loaded


def _checksum(file: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none, as of a cell of a notebook."""
    with suppress(OSError):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    return ""


_FOLDERS: dict[Path, dict[str, tuple[Path, str]]] = {}
"""File and SHA-256 of each file of components, and of each module beside it that it imports: by folder and module."""


def _import_file(path: Path) -> None:
    """Import a file as the module of its name, which worker processes find, too: its folder comes last on the path.

    If a file of its folder has changed, each of them is imported again when it is named or imported the next time.
    """
    name, known = path.stem, _FOLDERS.setdefault(path.parent, {})
    other = str(file_of(name))
    gone = any(name in modules for modules in _FOLDERS.values()) and not os.path.exists(other)
    if name in sys.modules and os.path.realpath(other) != str(path) and not gone:
        raise InputError(f"another module is named {name}: rename the file{f' ({other})' if file_of(name) else ''}")
    changed = [module for module, (file, checksum) in known.items() if _checksum(file) != checksum]
    if name in sys.modules and not changed and not gone:
        known.setdefault(name, (path, _checksum(path)))
        return
    forgotten = {name, *known} if changed else {name}
    for modules in _FOLDERS.values():
        modules.pop(name, None)
    former = {key: component for key, component in _REGISTERED.items() if component.module in forgotten}
    for module in forgotten:
        _forget(module)
        known.pop(module, None)
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    importlib.invalidate_caches()
    try:
        # compiled here: bytecode on the disk may be of other content of the same second
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), sys.modules[name].__dict__)
    except BaseException:
        _forget(name)
        raise
    finally:
        # a configuration in use may have components of files that are not imported again here
        kept = (item for item in former.items() if item[1].module != name and item[1].module not in sys.modules)
        _REGISTERED.update(kept)
        for module in {name, *sys.modules} - before:
            base, file = path.parent.joinpath(*module.split(".")), Path(os.path.realpath(str(file_of(module))))
            if file in (Path(f"{base}.py"), base / "__init__.py") and module.partition(".")[0] != "seamseg":
                known[module] = (file, _checksum(file))


def _forget(module: str) -> None:
    """Remove an imported module of components, its components and its bytecode."""
    if (file := file_of(module)) is not None:
        with suppress(OSError):
            Path(importlib.util.cache_from_source(file)).unlink()
    sys.modules.pop(module, None)
    for key in [key for key, component in _REGISTERED.items() if component.module == module]:
        del _REGISTERED[key]


def registered(kind: str | None = None) -> list[Component]:
    """Return the components that are imported, of a kind or of all, by name."""
    return sorted((c for c in _REGISTERED.values() if kind in (None, c.kind)), key=lambda c: (c.kind, c.name))


def is_registered(kind: str, name: str) -> bool:
    """Return whether a component is imported; the name may have an argument, `NAME:ARGUMENT`."""
    return (kind, name.partition(":")[0]) in _REGISTERED


def stays_text(kind: str) -> bool:
    """Return whether the built-in components of a kind are not imported in this process."""
    return KINDS[kind].defaults and not any(component.built_in for component in registered(kind))


def find(kind: str, name: str, others: Iterable[str] = ()) -> Component:
    """Return a component.

    Raises
    ------
    InputError
        if there is none of this kind and name; it lists `others`, too, as known ones
    """
    plain = name.partition(":")[0]
    if (kind, plain) in _REGISTERED:
        return _REGISTERED[kind, plain]
    module = RECIPES + plain
    file = recipe(module) if plain.isidentifier() and module not in sys.modules else None
    if file is not None and f'@{kind}("{plain}"' in file.read_text(encoding="utf-8"):
        raise InputError(f"no {kind} {name!r:.80}: it is part of this package, add `components={module}`")
    names = sorted({*(component.name for component in registered(kind)), *others})
    meant = did_you_mean(name, names) or f"; known are {', '.join(names) or 'none'}"
    raise InputError(f"no {kind} {name!r:.80}{meant}; name the file of another with `components=FILE`")


def recipe(module: str) -> Path | None:
    """Return the file of a module of this package that a configuration can name; None if there is none."""
    found = importlib.util.find_spec(module)
    return Path(found.origin) if found is not None and found.origin else None


def added_by(names: Iterable[str]) -> Iterator[Component]:
    """Yield the components of modules and files of :func:`load` that nothing has to choose."""
    modules = {Path(name).stem if name.endswith(".py") else name for name in names}
    for component in list(_REGISTERED.values()):
        kind = KINDS[component.kind]
        own = any(component.module == name or component.module.startswith(f"{name}.") for name in modules)
        if own and not (kind.key or kind.chosen):
            yield component


def custom_of(made: object) -> Component | None:
    """Return the component of the user whose class an object has; None for objects of this package."""
    kind = type(made)
    names = (kind.__module__, kind.__qualname__)  # the class itself may be from before its file changed
    found = (c for c in _REGISTERED.values() if (c.module, c.make.__qualname__) == names)
    return next((c for c in found if not c.built_in), None)


def at_fault(error: BaseException) -> str | None:
    """Return a line for an exception of a component's code: its section, file and line; None for other exceptions.

    A SeamsegError has its own.
    """
    if isinstance(error, SeamsegError):
        return None
    for frame, _ in walk_tb(error.__traceback__):
        if found := [c for c in _REGISTERED.values() if not c.built_in and str(c.file) == frame.f_code.co_filename]:
            owner = frame.f_locals.get("self")
            own = [c for c in found if c.make is type(owner) or getattr(c.make, "__code__", None) is frame.f_code]
            return ", ".join(c.section for c in own or found) + described(error, str(found[0].file))
    return None


def sections_of(file: str) -> str:
    """Return the sections of the components of a file of the user; empty for other files."""
    return ", ".join(c.section for c in _REGISTERED.values() if not c.built_in and str(c.file) == file)


@dataclass(frozen=True)
class Record:
    """What a model states about a component that its training used; nothing is imported because of it.

    Attributes
    ----------
    kind, name : kind and name of the component
    module, version : name of its module, and the `__version__` of that
    sha256 : SHA-256 of its file when that was imported
    """

    kind: str
    name: str
    module: str
    version: str
    sha256: str

    @staticmethod
    def of(component: Component) -> Record:
        """Describe a component."""
        version = str(getattr(sys.modules.get(component.module), "__version__", ""))
        return Record(component.kind, component.name, component.module, version, component.sha256)

    @property
    def missing(self) -> str | None:
        """A line if the component is not imported."""
        if (self.kind, self.name) in _REGISTERED:
            return None
        file = self.module if "." in self.module else f"{self.module}.py"
        if self.module == "__main__":
            file = "of a notebook or script: write it to a file"
        return f"{self.kind} {self.name} ({file}) is not imported: name its file with `components=FILE`"

    @property
    def change(self) -> str | None:
        """A line if the file of the imported component has changed since the training."""
        component = _REGISTERED.get((self.kind, self.name))
        if component is None or component.built_in or _checksum(component.file) == self.sha256:
            return None
        return f"{self.kind} {self.name}: {component.file} has changed since the training"


_WORD = re.compile(r"[\w.-]{1,80}")


def parse_records(content: Any, source: str) -> tuple[Record, ...]:
    """Return the records that a snapshot holds; InputError, with its name `source`, if they are damaged."""
    names = [spec.name for spec in fields(Record)]
    try:
        found = [Record(*(record[name] for name in names)) for record in content or ()]
        words = [word for record in found for word in (record.kind, record.name, record.module)]
        if len(found) <= 256 and all(_WORD.fullmatch(word) for word in words):
            return tuple(replace(record, version=str(record.version)[:80]) for record in found)
    except (KeyError, TypeError, IndexError):
        pass
    raise InputError(f"{source}: its list of components is damaged")
