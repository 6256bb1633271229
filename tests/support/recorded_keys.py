"""Which keys of a configuration the package reads."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any
from unittest import mock


@contextmanager
def recorded(sections: dict[str, type]) -> Iterator[set[str]]:
    """Record which keys the package reads, apart from checks and copies of the configuration."""
    reads: set[str] = set()

    def recorder(section: str, names: set[str]) -> Any:
        def get(self: Any, name: str) -> Any:
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
