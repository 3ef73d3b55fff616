"""From an `nn.Module` to canonical graphs: `capture(model, args, kwargs)` gives a Region, or a model with regions."""

from fxquant.capture.capture import Method, capture
from fxquant.errors import InputError

__all__ = ["InputError", "Method", "capture"]
