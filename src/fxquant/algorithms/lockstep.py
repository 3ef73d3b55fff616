"""A graph on several calls at once, node by node, whose values may be changed on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from fxquant.algorithms.replay import Replay
from fxquant.algorithms.some_calls import Calls, count_judges
from fxquant.algorithms.take_rest import plain_of
from fxquant.algorithms.weighted_op import WeightedOp
from fxquant.graph.region import Region
from fxquant.ops.table import Op, activation_nodes

Outputs = tuple[tuple[Tensor, ...], ...]


class Lockstep:
    """A graph on several calls at once, node by node; values go when nothing reads them any more."""

    def __init__(self, region: Region, runner: Replay, calls: Calls) -> None:
        self._runner, self._nodes, self._calls = runner, list(region.graph.nodes), calls
        self._values: list[dict[fx.Node, Any]] = [{} for _ in calls]
        judges = count_judges(calls)
        self.judged = len(calls) > judges
        self._fitted = self._values[:-judges] if self.judged else self._values  # corrections are found by them

    def __iter__(self) -> Iterator[fx.Node]:
        """Yield the nodes, each after it is computed."""
        given = 0
        last = {source: node for node in self._nodes for source in node.all_input_nodes}
        done: dict[fx.Node, list[fx.Node]] = {}
        for source, node in last.items():
            done.setdefault(node, []).append(source)
        for node in self._nodes if self._calls else ():
            for at, (call, values) in enumerate(zip(self._calls, self._values, strict=True)):
                self._runner.env, self._runner.call = values, at - len(self._calls)  # the last ones may run alone
                values[node] = call[given] if node.op == "placeholder" else self._runner.run_node(node)
            given += node.op == "placeholder"
            yield node
            for source in done.get(node, ()):
                for values in self._values:
                    del values[source]

    def outputs(self) -> Outputs:
        """Return the floating outputs of each call, after all nodes."""
        last = self._nodes[-1]
        leaves = [tree_leaves(values.get(last)) for values in self._values]
        return tuple(tuple(x for x in found if isinstance(x, Tensor) and x.is_floating_point()) for found in leaves)

    def means(self, node: fx.Node, op: Op) -> Tensor:
        """Return the means of the channels of what an op made, (samples, channels), over the calls that are fitted."""
        found = []
        for values in self._fitted:
            made, at = values[node], _channels_at(values[node], op)
            others = [axis for axis in range(1, made.dim()) if axis != at]
            # sums of float32 in one call are pairwise; float64 takes ten times as long
            each = made.float().mean(others) if others else made.float()
            found.append(each.view(-1, made.shape[at]) if at else each.mean(-1, keepdim=True).view(1, -1))
        return torch.cat(found).double().cpu()

    def inputs(self, op: WeightedOp) -> list[Tensor]:
        """Return what an op was given by the calls that are fitted."""
        source = activation_nodes(op.node, op.op)[0]
        return [values[source] for values in self._fitted]

    def change(self, op: WeightedOp, by: Tensor) -> None:
        """Add what a change of the weight of an op makes of its inputs to what it made."""
        source, module = activation_nodes(op.node, op.op)[0], plain_of(op)
        given = {"weight": by, "bias": torch.zeros(len(by)).to(by)}
        for values in self._values:
            values[op.node] = values[op.node] + functional_call(module, given, (values[source],))

    def add(self, node: fx.Node, op: Op, by: Tensor) -> None:
        """Add a number to each channel of what an op made."""
        for values in self._values:
            values[node] = _plus(values[node], op, by)

    def loss(self, node: fx.Node, op: Op, wanted: Tensor, by: Tensor) -> float:
        """Tell how far two additions to what an op made are from each other, behind what follows it at once."""
        user = next(iter(node.users), node)
        follows = len(node.users) == 1 and user.all_input_nodes == [node] and user.op != "output"
        total = 0.0
        for values in self._fitted:
            ends = [_plus(values[node], op, each) for each in (wanted, by)]
            if follows:
                ends = [self._after(user, node, end) for end in ends]
            total += float((ends[0] - ends[1]).square().sum())
        return total

    def errors(self, op: WeightedOp, true: Lockstep, by: Tensor) -> Tensor:
        """Return what each channel of what an op made, plus `by`, differs from another run, on calls kept apart.

        That is squared, and summed, behind the one op that follows, if it keeps the shape: a clip may hide it.
        """
        node, total = op.node, torch.zeros(len(by), dtype=torch.float64)
        user = next(iter(node.users), node)
        follows = len(node.users) == 1 and user.all_input_nodes == [node] and user.op != "output"
        judges = [*zip(self._values, true._values, strict=True)][len(self._fitted) if self.judged else 0 :]
        for mine, theirs in judges:
            ends = [_plus(mine[node], op.op, by), theirs[node]]
            after = [self._after(user, node, end) for end in ends] if follows else ends
            if all(end.shape == ends[0].shape for end in after):
                ends = after
            lost = (ends[0] - ends[1]).square()
            at = _channels_at(lost, op.op)
            total += lost.movedim(at, 0).flatten(1).sum(1).double().cpu()
        return total

    def _after(self, user: fx.Node, node: fx.Node, value: Tensor) -> Tensor:
        self._runner.env = {node: value}
        made = self._runner.run_node(user)
        return made if isinstance(made, Tensor) else value


def _channels_at(made: Tensor, op: Op) -> int:
    """Return the axis of the channels, also of a picture or a row without a batch."""
    assert op.channels_at is not None
    return op.channels_at - (op.weight_rank - made.dim()) if op.channels_at > 0 else op.channels_at % made.dim()


def _plus(made: Tensor, op: Op, by: Tensor) -> Tensor:
    shape = [-1 if axis == _channels_at(made, op) else 1 for axis in range(made.dim())]
    return made + by.to(made).view(shape)
