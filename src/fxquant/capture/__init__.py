"""From an `nn.Module` to a canonical graph: `capture(model, args, kwargs) -> Region`."""

from fxquant.capture.capture import capture
from fxquant.capture.guards import InputError

__all__ = ["InputError", "capture"]
