"""From an `nn.Module` to canonical graphs: `capture(model, args, kwargs)` gives a Region, or a model with regions."""

from fxquant.capture.capture import Method, Sizes, capture
from fxquant.errors import InputError

__all__ = ["InputError", "Method", "Sizes", "capture"]
