"""Components: named parts of a network, a training or an evaluation, built in or from a module or file of the user.

A component is a class or function that a decorator of :mod:`seamseg.components` registers under a kind and a name, with
a frozen dataclass of its options (docs/how-to/extend.md). Modules and files are imported only if the user names them,
never because they are installed or a model names them, except the packages in :data:`seamseg.extensions.RECIPES`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from seamseg.config.values import declaration_problem
from seamseg.extensions import RECIPES
from seamseg.utils.errors import InputError, SeamsegError, described, did_you_mean, file_of, named_errors


@dataclass(frozen=True)
class ComponentKind:
    """A kind of component, with a line for `seamseg components`."""

    what: str
    key: str = ""
    """`section.key` of the configuration that names one; empty if each section `[KIND NAME]` adds one."""
    evaluated: bool = False
    """An evaluation uses it although the configuration of the model does not name it."""
    chosen: bool = False
    """An option names it, not its section."""
    needed: bool = False
    """A model that has one does not open without it."""
    defaults: bool = False
    """Built-in ones are only imported where they are used; elsewhere their sections are not checked."""


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
    """The options of a component without any."""


@dataclass(frozen=True)
class NotLoaded:
    """The section of a component that is not imported: its values `texts` as written."""

    texts: dict[str, str]


@dataclass(frozen=True)
class Component:
    """A registered class or function `make`, and the frozen dataclass of its options, `keys`.

    `section` has its options in a configuration. `sha256` is the checksum of its file at the import; empty for
    components of this package, which are `built_in`.
    """

    kind: str
    name: str
    make: Callable[..., Any]
    keys: type
    module: str
    file: Path
    sha256: str
    section: str
    built_in: bool

    def build(self, *arguments: Any) -> Any:
        """Call :attr:`make`; its exceptions become an InputError with the component, its file and the line."""
        with named_errors(self.section, self.module, InputError):
            return self.make(*arguments)


Made = TypeVar("Made", bound=Callable[..., Any])
_REGISTERED: dict[tuple[str, str], Component] = {}


def register(kind: str, name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Return a decorator that registers a class or function; arguments as of :mod:`seamseg.components`.

    InputError if the name is not one, the options are not declared, or another component has the name.
    """
    plain = name.replace("-", "_") if KINDS[kind].chosen else name
    if not (plain.isascii() and plain.isidentifier() and plain == plain.lower()):
        raise InputError(f"{kind} {name!r:.80}: a name has lower-case letters, digits and underscores, no digit first")
    if not (is_dataclass(keys) and keys.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise InputError(f"{kind} {name}: its keys {keys.__name__} must be a dataclass with frozen=True")
    for spec in () if keys.__module__.startswith("seamseg.") else fields(keys):  # ours are tested
        if problem := declaration_problem(spec, keys):
            raise InputError(f"{kind} {name}: {spec.name} of {keys.__name__}: {problem}")

    def decorate(made: Made) -> Made:
        module, file = made.__module__, Path(str(file_of(made.__module__)))
        built_in = module.startswith("seamseg.")
        checksum = "" if built_in else _checksum(file)
        component = Component(kind, name, made, keys, module, file, checksum, f"{kind} {name}", built_in)
        other = _REGISTERED.setdefault((kind, name), component)
        if other.module != module or other.make.__qualname__ != made.__qualname__:
            raise InputError(f"another {kind} {name} is in {other.file}: rename one")
        _REGISTERED[kind, name] = component
        return made

    return decorate


def load(names: Iterable[str], folder: Path | None = None) -> list[str]:
    """Import modules (`package.module`) and files (`*.py`) of components, files again if they have changed.

    Files are searched in the folder, then in the working directory. Returns the names, files as absolute paths.
    """
    loaded = []
    for name in filter(None, map(str.strip, names)):
        if is_file := name.endswith(".py"):
            found = [path.resolve() for path in (Path(folder or "", name), Path(name)) if path.is_file()]
            if not found:
                raise InputError(f"components: {name}: no such file")
            name = str(found[0])
        try:
            _import_file(found[0]) if is_file else importlib.import_module(name)
        except InputError as error:
            raise InputError(f"components: {name}: {error}") from error
        except (Exception, SystemExit) as error:
            where = described(error, name) if is_file else f": {name}{described(error, None)}"
            raise InputError(f"components{where}") from error
        loaded.append(name)
    return loaded


def _checksum(file: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none, as of a cell of a notebook."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


_IMPORTED: dict[str, str] = {}
"""SHA-256 of each imported file of components."""


def _import_file(path: Path) -> None:
    """Import a file as the module of its name, which worker processes find, too: its folder comes last on the path."""
    name, checksum = path.stem, _checksum(path)
    other = os.path.realpath(str(file_of(name)))
    if name in sys.modules:
        if other != str(path):
            raise InputError(f"another module is named {name}: rename the file{f' ({other})' if file_of(name) else ''}")
        if _IMPORTED.setdefault(other, checksum) == checksum:
            return
    _forget(name)
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
    _IMPORTED[str(path)] = checksum


def _forget(module: str) -> None:
    sys.modules.pop(module, None)
    for key in [key for key, component in _REGISTERED.items() if component.module == module]:
        del _REGISTERED[key]


def registered(kind: str | None = None) -> list[Component]:
    """Return the components that are imported, of a kind or of all, by name."""
    return sorted((c for c in _REGISTERED.values() if kind in (None, c.kind)), key=lambda c: (c.kind, c.name))


def is_registered(kind: str, name: str) -> bool:
    """Return whether a component is imported; the name may have an argument, `NAME:ARGUMENT`."""
    return (kind, name.partition(":")[0]) in _REGISTERED


def find(kind: str, name: str, others: Iterable[str] = (), where: str = "") -> Component:
    """Return a component; InputError, after `where`, with `others` as known ones too, if there is none of this name."""
    plain = name.partition(":")[0]
    if (kind, plain) in _REGISTERED:
        return _REGISTERED[kind, plain]
    for module in (f"{package}.{plain}" for package in RECIPES if plain.isidentifier()):
        if importlib.util.find_spec(module) is not None:
            raise InputError(f"{where}no {kind} {name!r:.80}: it is part of this package, add `components={module}`")
    names = sorted({*(component.name for component in registered(kind)), *others})
    meant = did_you_mean(name, names) or f"; known are {', '.join(names) or 'none'}"
    raise InputError(f"{where}no {kind} {name!r:.80}{meant}; name the file of another with `components=FILE`")


def added_by(names: Iterable[str]) -> Iterator[Component]:
    """Yield the components of modules and files of :func:`load` that nothing has to choose."""
    modules = tuple(Path(name).stem if name.endswith(".py") else name for name in names)
    for component in list(_REGISTERED.values()):
        own = any(f"{component.module}.".startswith(f"{name}.") for name in modules)
        if own and not (KINDS[component.kind].key or KINDS[component.kind].chosen):
            yield component


def custom_of(made: object) -> Component | None:
    """Return the component of the user whose class an object has; None for objects of this package."""
    names = (type(made).__module__, type(made).__qualname__)  # the class itself may be from before its file changed
    found = (c for c in _REGISTERED.values() if (c.module, c.make.__qualname__) == names)
    return next((c for c in found if not c.built_in), None)


def at_fault(error: BaseException) -> str | None:
    """Return a line for an exception of a component's code: its section, file and line; None for other exceptions."""
    if isinstance(error, SeamsegError):
        return None
    for frame, _ in walk_tb(error.__traceback__):
        # also in a method that its class inherits from this package
        if (owner := custom_of(frame.f_locals.get("self"))) is not None:
            return owner.section + described(error, file_of(owner.module))
        file = frame.f_code.co_filename
        if sections := [c.section for c in _REGISTERED.values() if not c.built_in and str(c.file) == file]:
            return ", ".join(sections) + described(error, file)
    return None


@dataclass(frozen=True)
class Record:
    """A custom component of a training, as its snapshots state it; nothing is imported because of it."""

    kind: str
    name: str
    module: str
    version: str
    sha256: str

    @staticmethod
    def of(component: Component) -> Record:
        """Describe a component; the version is the `__version__` of its module."""
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
