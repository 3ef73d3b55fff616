"""How the native engine is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fxquant.engines.native.cache import default_directory


@dataclass(frozen=True, kw_only=True, slots=True)
class Native:
    """The native engine with settings of its own: `convert_fx(prepared, engine=Native(cache=None))`.

    `cache` is the directory that compiled code is kept in, None keeps none. It is used only if it is the user's alone.
    """

    cache: str | Path | None = field(default_factory=default_directory)
