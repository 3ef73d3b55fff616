"""Words of Quark's configs."""

from __future__ import annotations

from enum import Enum


class Dtype(Enum):
    """Numbers of a quantized tensor."""

    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    uint16 = "uint16"
    int4 = "int4"
    uint4 = "uint4"
    int3 = "int3"
    int2 = "int2"
    int32 = "int32"  # a bias as the accumulator holds it
    float16 = "float16"  # a weight that is stored as that


class QSchemeType(Enum):
    """How many scales a tensor has."""

    per_tensor = "per_tensor"
    per_channel = "per_channel"
    per_group = "per_group"


class ScaleType(Enum):
    """What a scale may be."""

    float = "float"
    float32 = "float32"
    pof2 = "pof2"


class RoundType(Enum):
    """Where a half goes."""

    half_even = "half_even"
    round = "round"
    floor = "floor"


class QuantizationMode(Enum):
    """Quark's two flows. There is one here, so both are the same."""

    eager_mode = "eager_mode"
    fx_graph_mode = "fx_graph_mode"


class TQTThresholdInitMeth(Enum):
    """Where TQT starts. Here it starts from the observed range."""

    _3SD = "_3SD"
    _KL_J = "_KL_J"
