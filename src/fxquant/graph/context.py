"""What passes know of a region beside its graph: what the user asked for, and the hardware that it is decided for.

A model has one Context, and one more for each standalone module with a config of its own. A pass gets that of its
region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, fx, nn

from fxquant.config.custom_config import PrepareCustomConfig
from fxquant.config.rules import Rules
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.graph.algorithm import Algorithm, Statistic
from fxquant.graph.amendments import Amendments
from fxquant.ops.table import OPS, OpTable

# what is to be known of which tensors: of several where one observer is to see them all
Needs = list[tuple[tuple[str, ...], Spec | Statistic]]
# writes a check that a tensor has this rank into a graph
Guard = Callable[[fx.Graph, fx.Node, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The part of the model at `path` is the user's module `model`, under `rules` and a custom config.

    Without `rules`, those that were asked before stand. `target` is None as long as it is open. `uncalibrated` is a
    model that saw no data at all: its grids come with a state_dict. `guard` is for graphs whose sizes are not known.
    `own_rules`: it is a standalone module with rules of its own. `needs` is what the targets that it may be decided for
    want watched. `amendments` change what the rules answer. `tied` and `shared` are what the regions of one run have in
    common: the integers, and the quantizers, of weights that are one tensor.
    """

    path: str = ""
    model: nn.Module | None = None
    rules: Rules | None = None
    custom: PrepareCustomConfig = field(default_factory=PrepareCustomConfig)
    own_rules: bool = False
    strict: bool = True
    target: Target | None = None
    ops: OpTable = OPS
    training: bool = False
    uncalibrated: bool = False
    guard: Guard | None = None
    algorithms: tuple[Algorithm, ...] = ()
    needs: Sequence[Needs] = ()
    amendments: Amendments = field(default_factory=Amendments)
    tied: dict[tuple[int, Spec], tuple[Tensor, tuple[Tensor, Tensor, Tensor]]] = field(default_factory=dict)
    shared: dict[tuple[int, Spec], nn.Module] = field(default_factory=dict)

    @property
    def hardware(self) -> Target:
        """The target, where all is decided for one."""
        assert self.target is not None, "a pass that decides needs a target"
        return self.target
