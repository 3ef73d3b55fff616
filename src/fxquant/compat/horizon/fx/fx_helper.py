"""`wrap`: the body of a function or method stays as written."""

from __future__ import annotations

from fxquant.capture.symbolic.wrap import wrap

__all__ = ["wrap"]
