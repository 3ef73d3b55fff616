"""What an algorithm is: a way to make a quantized model better, as hooks at four points of the pipeline.

    rewrite   PREPARE    the float graph, before anything is watched
    watch     WATCH      what calibration is to keep: means, extremes by channel, Gram matrices, some of the inputs
    adapt     DECIDE     the calibrated float graph, before it is decided: equalization, SmoothQuant
    apply     FREEZE     the decided graph, before it is converted: bias correction, GPTQ, reconstruction

Most need two of them. Where each hook is called: passes/run_algorithms.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import nn

if TYPE_CHECKING:
    from fxquant.graph.context import Context
    from fxquant.graph.region import Region


class Statistic(Protocol):
    """Something to keep of a tensor, as a value: a frozen dataclass. Equal ones of one tensor are kept once."""

    @property
    def label(self) -> str:
        """Tells it from other statistics of a tensor; an end of names in state_dicts, so letters, digits and _."""

    def make(self) -> nn.Module:
        """Return a numerics.observers.watcher.Watcher that has seen nothing."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A statistic of a tensor, which goes by the name of its node in the float graph (`passes.watch.float_name`).

    Of several tensors, if names are given as a tuple: then each call of the watcher gets all of them.
    """

    tensor: str | tuple[str, ...]
    statistic: Statistic


class Algorithm:
    """The base of algorithms. Those are frozen dataclasses with their settings as fields.

    They go along in a prepared model when it is copied or pickled, and keep no state: what they find in calibration are
    statistics, what they find later goes into the region. A region may share its tensors with the model that was
    prepared: put new parameters into modules, do not write into old ones.

    `chooses_weights`: it has other integers stored for weights than the nearest. `makes_up_for_biases`: such integers
    take what biases of a few bits lose.
    """

    chooses_weights: ClassVar[bool] = False
    makes_up_for_biases: ClassVar[bool] = False

    def rewrite(self, region: Region, context: Context) -> None:
        """Rewrite the float graph in place. Batch norms are folded, and calls carry the rule that won (`choice_of`)."""

    def watch(self, region: Region, context: Context) -> Iterable[Watched]:
        """Return what calibration is to keep.

        `region` is a copy that is decided for the target of the context, with Notes.
        """
        return ()

    def adapt(self, region: Region, context: Context) -> None:
        """Rewrite the calibrated float graph in place. What was seen of a tensor that changes has to change, too
        (`passes.look_again`).

        `passes.watch.seen` gives what `watch` asked for; None where there was no data, as when a model is prepared.
        """

    def apply(self, region: Region, context: Context) -> None:
        """Change the decided graph in place: weights, biases, quantizers. `passes.watch.seen` as in `adapt`."""
