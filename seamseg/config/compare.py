"""What two configurations disagree about."""

from __future__ import annotations

from dataclasses import fields

from seamseg.config.sections import SECTIONS, Config
from seamseg.config.values import format_value


def differences(old: Config, new: Config) -> list[str]:
    """Each key with another value in the two, as `section.key: old -> new`."""
    found = []
    for section, kind in SECTIONS.items():
        for spec in fields(kind):
            before, after = (getattr(getattr(config, section), spec.name) for config in (old, new))
            if before != after:
                was, now = (format_value(value) or "empty" for value in (before, after))
                found.append(f"{section}.{spec.name}: {was} -> {now}")
    return found
