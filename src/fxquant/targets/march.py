"""The target of the process, for code that names its hardware once: `set_march("bpu")`.

It is what `prepare_fx`, `prepare_qat_fx` and `quantize` take when no target is given. Only users set it.
"""

from __future__ import annotations

from fxquant.config.target import Target

_march: list[Target] = []  # empty, or the one that was set


def march() -> Target | None:
    """Return the target that was set for the process, if any."""
    return _march[0] if _march else None


def put_march(target: Target | None) -> None:
    """Set it, or with None forget it."""
    _march[:] = [] if target is None else [target]
