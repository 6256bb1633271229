"""Components: named parts of a network, a training or an evaluation, built in or from a module or file of the user.

A component is a class or function that a decorator of :mod:`seamseg.components` registers under a kind and a name, with
a frozen dataclass of its keys (docs/how-to/extend.md). Modules and files are imported only if the user names them,
never because they are installed or a model names them.
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

from seamseg.config.component_kinds import KINDS as KINDS
from seamseg.config.component_kinds import parse_section as parse_section
from seamseg.config.values import declaration_problem
from seamseg.utils.component_errors import described, file_of
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError, did_you_mean, near_names
from seamseg.utils.output import warn

API = 1
"""Version of the interface; one that breaks components gets another number."""


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
    module : name of the module that registers it
    sha256 : SHA-256 of its file when that was imported; empty for built-in ones
    """

    kind: str
    name: str
    make: Callable[..., Any]
    keys: type
    module: str
    sha256: str = ""

    @property
    def section(self) -> str:
        """Section of its keys."""
        return f"{self.kind} {self.name}"

    @property
    def file(self) -> Path:
        """File of the module."""
        return Path(str(file_of(self.module)))

    @property
    def built_in(self) -> bool:
        """Whether it is part of this package."""
        return self.module.partition(".")[0] == "seamseg"

    @property
    def misspelt(self) -> str:
        """A line about a method that nothing calls and whose name is almost that of one of the base class, or empty."""
        base = next((c for c in getattr(self.make, "__mro__", ()) if c.__module__.startswith("seamseg.")), None)
        if base is None:
            return ""
        own = {name: value for name, value in vars(self.make).items() if callable(value)}
        called = {name for value in own.values() if hasattr(value, "__code__") for name in value.__code__.co_names}
        meant = [name for name, value in vars(base).items() if callable(value) and name not in own]
        for name in (name for name in own if not (name.startswith("_") or name in called or hasattr(base, name))):
            if found := near_names(name, meant, 1, 0.8):
                return f"it has a method {name}, which nothing calls: is it meant to be {found[0]}?"
        return ""

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
    """The section of a component that is not imported: a model names it, the user does not.

    Attributes
    ----------
    texts : its values as written
    """

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
        component = Component(kind, name, made, keys, made.__module__)
        if not component.built_in:
            component = replace(component, sha256=_checksum(component.file))
            if doubt := component.misspelt:
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


_Sources = dict[str, tuple[Path, str]]
_SOURCES: dict[str, _Sources] = {}
"""File and SHA-256 of each imported file of components, and of the modules beside it that it imports, by module."""


def _checksum(file: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none, as of a cell of a notebook."""
    with suppress(OSError):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    return ""


def _import_file(path: Path) -> None:
    """Import a file as the module of its name, which worker processes find, too: its folder comes last on the path.

    It is imported again if it, or a module beside it that it imports, has changed.
    """
    name, sources = path.stem, _SOURCES.get(path.stem, {})
    other = file_of(name)
    gone = name in sources and not os.path.exists(str(other))
    if name in sys.modules and os.path.realpath(str(other)) != str(path) and not gone:
        raise InputError(f"another module is named {name}: rename the file{f' ({other})' if other else ''}")
    changed = [module for module, (file, checksum) in sources.items() if _checksum(file) != checksum]
    if name in sys.modules and not changed:
        _SOURCES.setdefault(name, {name: (path, _checksum(path))})
        return
    for module in {name, *changed}:
        if module in _SOURCES and module != name:
            _import_file(sources[module][0])
        else:
            _forget(module)
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    importlib.invalidate_caches()
    try:
        # compiled here: bytecode on the disk may be of other content of the same second
        text = path.read_bytes()
        exec(compile(text, str(path), "exec", dont_inherit=True), sys.modules[name].__dict__)
    except BaseException:
        _forget(name)
        raise
    # those that another file has imported before as well, and other files of components that it may build on
    others = {*sys.modules} - before | {m for known in _SOURCES.values() for m in known if m not in _SOURCES}
    others |= {module for module in _SOURCES if re.search(rf"\b{module}\b".encode(), text)}
    files = {module: Path(os.path.realpath(str(file_of(module)))) for module in (name, *others)}
    beside = {module: file for module, file in files.items() if _is_beside(path, module, file)}
    _SOURCES[name] = {module: (file, _checksum(file)) for module, file in beside.items()}


def _is_beside(path: Path, module: str, file: Path) -> bool:
    base = path.parent.joinpath(*module.split("."))
    return file in (Path(f"{base}.py"), base / "__init__.py")


def _forget(module: str) -> None:
    """Remove an imported module of components, its components and its bytecode."""
    if (file := file_of(module)) is not None:
        with suppress(OSError):
            Path(importlib.util.cache_from_source(file)).unlink()
    sys.modules.pop(module, None)
    for key in [key for key, component in _REGISTERED.items() if component.module == module]:
        del _REGISTERED[key]


def registered(kind: str | None = None, built_in: bool = True) -> list[Component]:
    """Return the imported and, with `built_in`, the built-in components, of a kind or of all, by name."""
    for module in (m for one in ([kind] if kind is not None else KINDS) for m in KINDS[one].modules if built_in):
        importlib.import_module(module)
    return sorted((c for c in _REGISTERED.values() if kind in (None, c.kind)), key=lambda c: (c.kind, c.name))


def is_registered(kind: str, name: str, exported: bool = False) -> bool:
    """Return whether a component is built in or imported; the name may have an argument, `NAME:ARGUMENT`.

    For an `exported` network, kinds that it does not use are not imported: they need torch.
    """
    name = name.partition(":")[0]
    known = KINDS.get(kind)
    if known is not None and (not exported or known.evaluated or known.chosen):
        for module in known.modules:
            if (kind, name) in _REGISTERED:
                break
            importlib.import_module(module)
    return (kind, name) in _REGISTERED


def find(kind: str, name: str) -> Component:
    """Return a component.

    Raises
    ------
    InputError
        if there is none of this kind and name
    """
    if is_registered(kind, name):
        return _REGISTERED[kind, name.partition(":")[0]]
    names = [component.name for component in registered(kind)]
    meant = did_you_mean(name, names) or f"; known are {', '.join(names) or 'none'}"
    raise InputError(f"no {kind} {name!r:.80}{meant}; name the file of another with `components=FILE`")


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
    """Return a line for an exception of a component's code: its section, file and line; None for other exceptions."""
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
        version = str(getattr(sys.modules[component.module], "__version__", ""))
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
