"""How the native engine is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fxquant.engines.native.cache import default_directory
from fxquant.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Native:
    """The native engine with settings of its own: `convert_fx(prepared, engine=Native(cache=None))`.

    `cache` is the directory that compiled code and packed weights are kept in, None keeps none. It is used only if it
    is the user's alone.
    `sizes` says for how many sizes and layouts of inputs a region may have code, each with a copy of the weights. They
    get it in the order in which they come, and others run on oneDNN until one of these is not used any more.

    Example:
        >>> fq.Native(cache=None, sizes=1).sizes
        1
    """

    cache: str | Path | None = field(default_factory=default_directory)
    sizes: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, int) or self.sizes < 0:
            raise ConfigError(f"sizes={self.sizes!r} is not a number of sizes. Use 0 or more.")
