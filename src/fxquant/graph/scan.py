"""The steps of a recurrent layer as one call, where the engine of the step's region has that."""

from __future__ import annotations

import torch
from torch import nn

from fxquant.graph.lowering import Steps, reference_graph
from fxquant.graph.notes import decision_of
from fxquant.graph.region import Region, lowering_of, runner_of, stage_of
from fxquant.graph.region_parts import Stage


def runs_step_by_step(step: nn.Module) -> bool:
    """Tell whether a module is a converted region whose engine has no `scan_all`."""
    if not isinstance(step, Region) or stage_of(step) is not Stage.CONVERTED:
        return False
    runner = runner_of(step)
    return runner is None or runner.failed != "" or runner.scan is None


def multiplies_floats(step: nn.Module) -> bool:
    """Tell whether a module is a converted region whose weights alone are integers."""
    if not isinstance(step, Region) or stage_of(step) is not Stage.CONVERTED:
        return False
    decisions = map(decision_of, reference_graph(step).nodes)
    return any(decision is not None and decision.status == "weight_only" for decision in decisions)


def scan_all(step: nn.Module, x: torch.Tensor, state: tuple[torch.Tensor, ...], backwards: bool) -> Steps | None:
    """(outputs, final state) of `state = step(x[t], *state)` for all t, if the engine of the step has that as one call.

    None if it has not, or does not take this call: then the steps are run one by one.
    """
    if not isinstance(step, Region) or torch.compiler.is_compiling():
        return None
    runner = runner_of(step)
    if runner is None or runner.failed or runner.scan is None:
        return None
    lowering_of(step).ready(step)
    return runner.scan(step, x, state, backwards)
