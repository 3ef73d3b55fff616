"""Move positions one by one, each move by what it does to the outputs: a search from solutions that keep all rules.

    error(at)  =  sum over outputs of  |y(at) - y|^2 / |y|^2         y: in float, on inputs that calibration kept

Values of all nodes are kept, so that a move computes again only what comes after it. A position is tried where the
tensor's own noise there is not beyond `_WORTH` times what it is now. It begins where, of all solutions that are given,
the outputs are nearest. Of a few inputs, and so many moves, some bring the
outputs nearer by chance: a move counts if the inputs agree on it, by more than the error of their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from fxquant.graph.interpret import PlainInterpreter
from fxquant.graph.preparation import FloatCalls
from fxquant.graph.region import Region
from fxquant.numerics.affine import fake_quantize
from fxquant.numerics.positions.costs import range_at, scale_at
from fxquant.numerics.positions.problem import Problem, Rule
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.passes.find_quantizer import quantizer_of
from fxquant.passes.position_tensors import PositionTensors

_WORTH = 16.0
_BETTER = 0.99  # an error has to fall to this share


def measure_moves(
    tensors: PositionTensors, problem: Problem, starts: Sequence[Mapping[str, int]], float_calls: FloatCalls
) -> dict[str, int]:
    """Positions that keep all rules, and bring the outputs at least as near to those in float as any of `starts`."""
    region = tensors.region
    readers = {name: _readers(tensors, name) for name in starts[0]}
    runs = [_Run(region, call, wanted) for call, wanted in zip(float_calls.calls, float_calls.outputs, strict=True)]
    with _put_back(tensors):
        found_at = [_errors(tensors, runs, start) for start in starts]
        first = min(range(len(starts)), key=lambda index: sum(found_at[index]))
        at, errors, tries = dict(starts[first]), found_at[first], float_calls.tries
        if first != len(starts) - 1:
            errors = _errors(tensors, runs, at)
        about = {name: [rule for rule in problem.rules if name in rule.tensors] for name in at}
        for name in _in_order(region, readers):
            for step in (1, -1):
                while tries > 0 and _is_open(problem, about[name], at, name, at[name] + step):
                    tries -= 1
                    _round_at(tensors, name, at[name] + step)
                    found = [run.after(readers[name]) for run in runs]
                    moved = [run.error(values) for run, values in zip(runs, found, strict=True)]
                    if not _is_nearer(moved, errors):
                        _round_at(tensors, name, at[name])
                        break
                    errors, at[name] = moved, at[name] + step
                    for run, values in zip(runs, found, strict=True):
                        run.values.update(values)
    return at


def _errors(tensors: PositionTensors, runs: Sequence[_Run], at: Mapping[str, int]) -> list[float]:
    """Return what is lost at the outputs of each run, all computed anew with tensors at these positions."""
    for name, place in at.items():
        _round_at(tensors, name, place)
    for run in runs:
        run.start()
    return [run.error() for run in runs]


def _is_nearer(moved: list[float], errors: list[float]) -> bool:
    """Tell whether errors of inputs fall with a move, and not by chance."""
    gains = torch.tensor(errors, dtype=torch.float64) - torch.tensor(moved, dtype=torch.float64)
    chance = float(gains.std()) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return float(gains.mean()) > chance and sum(moved) < _BETTER * sum(errors)


def _readers(tensors: PositionTensors, name: str) -> list[fx.Node]:
    """Return the nodes that compute with a tensor: calls of its quantizer, or the ops of a weight or bias."""
    if name not in tensors.quantizers:
        return tensors.calls[name]
    quantizer = tensors.quantizers[name]
    return [node for node in tensors.region.graph.nodes if quantizer_of(tensors.region, node) is quantizer]


@contextmanager
def _put_back(tensors: PositionTensors) -> Iterator[None]:
    """Afterwards all tensors are rounded as before."""
    scales = {name: quantizer.scale for name, quantizer in tensors.quantizers.items()}
    modules = {tensors.region.get_submodule(str(node.target)) for calls in tensors.calls.values() for node in calls}
    parameters = {module: dict(module._parameters) for module in modules}
    blocks = {m: (m.weight_fq.scale, m.__dict__.get("bias_spec")) for m in modules if type(m) is QatBlock}
    try:
        yield
    finally:
        for name, scale in scales.items():
            tensors.quantizers[name].scale = scale
        for module, before in parameters.items():
            module._parameters.update(before)
        for block, (scale, bias) in blocks.items():
            block.weight_fq.scale, block.__dict__["bias_spec"] = scale, bias


def _round_at(tensors: PositionTensors, name: str, place: int) -> None:
    """Compute with a tensor at a position from now on."""
    if name in tensors.quantizers:
        tensors.quantizers[name].scale = scale_at(place).to(tensors.quantizers[name].scale)
        return
    values, spec = tensors.stored[name]
    what = name.partition(" ")[0]
    for node in tensors.calls[name]:
        module = tensors.region.get_submodule(str(node.target))
        if type(module) is not QatBlock:
            zero = torch.zeros((), dtype=torch.int32, device=values.device)
            rounded = fake_quantize(values, scale_at(place).to(values.device), zero, spec)
            module._parameters[what] = nn.Parameter(rounded.to(module._parameters[what]), requires_grad=False)
        elif what == "weight":
            module.weight_fq.scale = scale_at(place).to(module.weight_fq.scale)
        else:
            module.__dict__["bias_spec"] = spec.stored().with_(
                observer="fixed", range=range_at(place, spec), learn=None
            )


def _is_open(problem: Problem, rules: list[Rule], at: Mapping[str, int], name: str, place: int) -> bool:
    moved = {**at, name: place}
    worth = problem.cost(name, place) <= _WORTH * problem.cost(name, at[name])
    return worth and all(rule.holds(moved) for rule in rules)


def _in_order(region: Region, readers: Mapping[str, list[fx.Node]]) -> Iterator[str]:
    places = {node: index for index, node in enumerate(region.graph.nodes)}
    yield from sorted(readers, key=lambda name: min((places[node] for node in readers[name]), default=0))


class _Run(PlainInterpreter):
    """A graph on one input: the values of its nodes, and the outputs in float."""

    def __init__(self, region: Region, call: tuple[object, ...], wanted: object) -> None:
        super().__init__(region, garbage_collect_values=False)
        self._call, self._wanted, self._order = call, _floats(wanted), list(region.graph.nodes)
        self.values: dict[fx.Node, Any] = {}

    @torch.no_grad()
    def start(self) -> None:
        """Find all values, as tensors are rounded now."""
        self.env, self.args_iter = {}, iter(self._call)
        for node in self._order:
            self.env[node] = self.run_node(node)
        self.values = self.env

    @torch.no_grad()
    def after(self, changed: list[fx.Node]) -> dict[fx.Node, object]:
        """Return the values that differ once some nodes compute something else."""
        again, found = set(changed), dict[fx.Node, Any]()
        self.env = dict(self.values)
        for node in self._order:
            if node in again or any(source in found for source in node.all_input_nodes):
                found[node] = self.env[node] = self.run_node(node)
        return found

    def error(self, found: Mapping[fx.Node, object] | None = None) -> float:
        """Tell how far the outputs are from those in float."""
        outputs = _floats((found or self.values).get(self._order[-1], self.values[self._order[-1]]))
        pairs = zip(outputs, self._wanted, strict=True)
        return sum(float((a - b).square().sum() / b.square().sum().clamp_min(1e-30)) for a, b in pairs)


def _floats(value: object) -> list[Tensor]:
    return [leaf.float() for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
