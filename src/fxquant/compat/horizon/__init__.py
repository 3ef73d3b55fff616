"""Horizon's names for its FX flow, over our own: its guides run with other import lines.

import fxquant.compat.horizon as horizon
horizon.march.set_march(horizon.march.March.NASH)
model = horizon.quantization.prepare(model, qconfig_setter=horizon.quantization.qconfig_template....)
"""

from __future__ import annotations

from fxquant.compat.horizon import fx, march, quantization

__all__ = ["fx", "march", "quantization"]
