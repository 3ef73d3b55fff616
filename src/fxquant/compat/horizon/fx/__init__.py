"""Helpers for code that FX does not trace."""

from __future__ import annotations

from fxquant.compat.horizon.fx import fx_helper

__all__ = ["fx_helper"]
