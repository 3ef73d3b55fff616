"""What most int8 hardware takes, where nothing is known of it: no fusion beyond clips, no grid that some refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fxquant.config.limits import Grids
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.targets.x86 import CONVS, x86

CLIPS = frozenset(("relu", "clamp"))  # become the ends of the output's grid


def clip_tails(tails: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Tails of which convolutions keep the clips only."""
    return {kind: CLIPS if kind in CONVS else kinds for kind, kinds in tails.items()}


def generic() -> Target:
    """s8 activations with a zero point, s8 weights per channel in [-127, 127], silu as two ops."""
    base = x86(vnni=True)
    return dataclasses.replace(
        base,
        name="generic",
        channel_scales=frozenset(),
        activation=Spec(symmetric=False, observer="histogram"),
        weight=Spec(granularity="per_channel", limits=(-127, 127), observer="minmax"),
        activations=Grids(bits=(8,), signed=True, granularity=("per_tensor",)),
        weights=Grids(bits=(8,), signed=True, symmetric=True, ends=(-127, 127)),
        tails=dict.fromkeys(base.tails, CLIPS),
        residual=frozenset(),
        split=frozenset(("silu",)),
    )
