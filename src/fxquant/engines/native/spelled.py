"""Ops that the op table has no kind for, and kernels have: by name, whatever their spelling."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping

import torch
from torch import fx
from torch.nn import functional as F

from fxquant.engines.native.activations import FLOAT_KINDS
from fxquant.engines.native.elementwise import COMPARISONS

_ALIASES = {
    "negative": "neg",
    "absolute": "abs",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "not_equal": "ne",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "inv": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
}
LOGIC = ("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor")
EACH = frozenset(
    (
        *(FLOAT_KINDS | {"pow", "square", "maximum", "minimum", "where", "masked_fill", "bitwise_not"}),
        *COMPARISONS,
        *LOGIC,
    )
)
REDUCTIONS = frozenset(("amax", "amin", "var", "std", "norm", "vector_norm"))
NAMES = EACH | REDUCTIONS | {"normalize", "rms_norm", "bool"}


def name_of(node: fx.Node) -> str:
    """Return the name of an op among NAMES; "" for others."""
    if node.op == "call_method":
        method = str(node.target)
        plain = method[2:-2] if method.startswith("__") and method.endswith("__") else method
        name = _ALIASES.get(plain, plain)
        return name if name in NAMES else ""
    return _functions().get(node.target, "") if node.op == "call_function" else ""


@functools.cache
def _functions() -> Mapping[object, str]:
    """Return functions of Python and torch, and overloads of ATen, by what they are."""
    found: dict[object, str] = {}
    for spelling, name in (*((name, name) for name in sorted(NAMES)), *_ALIASES.items()):
        for space in (torch, operator, F, torch.linalg):
            if callable(function := getattr(space, spelling, None)):
                found[function] = name
        packet = getattr(torch.ops.aten, spelling, None)
        if packet is not None:
            found.update({getattr(packet, overload): name for overload in packet.overloads()})
    found[torch.ops.aten.linalg_vector_norm.default] = "vector_norm"
    return found
