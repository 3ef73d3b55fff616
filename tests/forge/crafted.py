"""Crafted files, by name: what an attacker would try. Each is a base file and a change."""

from __future__ import annotations

from forge.amounts import of_numbers
from forge.by_values import by_values
from forge.defaults import of_defaults
from forge.files import Change
from forge.growth import growing
from forge.headers import of_headers
from forge.kinds import of_kinds
from forge.lies import of_lies
from forge.trust import trusting
from forge.words import of_words


def crafted() -> dict[str, tuple[str, Change]]:
    """Name -> (base file, change)."""
    found: dict[str, tuple[str, Change]] = {}
    sources = (
        *(of_words(), of_numbers(), of_headers(), growing(), trusting(), of_kinds(), of_defaults(), of_lies()),
        by_values(),
    )
    for source in sources:
        for name, base, change in source:
            found[f"{len(found)}: {name}"] = base, change
    return found
