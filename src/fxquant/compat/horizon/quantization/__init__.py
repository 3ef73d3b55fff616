"""prepare, the states of its fake quantizers, and fuse_fx."""

from __future__ import annotations

from fxquant.compat.horizon.march import March
from fxquant.compat.horizon.quantization import qconfig_template
from fxquant.compat.horizon.quantization.prepare import FakeQuantState, PrepareMethod, prepare, set_fake_quantize
from fxquant.compat.stubs import DeQuantStub, QuantStub
from fxquant.quantize_fx import fuse_fx

__all__ = [
    "DeQuantStub",
    "FakeQuantState",
    "March",
    "PrepareMethod",
    "QuantStub",
    "fuse_fx",
    "prepare",
    "qconfig_template",
    "set_fake_quantize",
]
