"""The ops of a decided graph that have a quantized weight, as algorithms look at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx, nn

from fxquant.algorithms.divided_by import may_divide_by
from fxquant.config.spec import Spec
from fxquant.graph.context import Context
from fxquant.graph.notes import note_of
from fxquant.graph.region import Region
from fxquant.graph.tensor_users import count_users, is_sole_user
from fxquant.ops.table import Op, activation_nodes
from fxquant.passes.watch import float_name


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedOp:
    """A call of a linear or convolution whose weight gets the grid of `spec`.

    `tensor` is its input, by the name under which calibration watches it; the `channels` of that lie along `axis`.
    Several calls may be of one module. `keeps_zeros`: channels whose bias is zero have to keep it.
    """

    node: fx.Node
    op: Op
    module: nn.Module
    weight: Tensor
    spec: Spec
    tensor: str
    axis: int
    channels: int
    keeps_zeros: bool

    @property
    def is_fine(self) -> bool:
        """Whether the weight loses little by rounding to the nearest: 8 bits, and a scale per channel or group."""
        return self.spec.bits >= 8 and self.spec.granularity != "per_tensor"

    @property
    def groups(self) -> int:
        return int(getattr(self.module, "groups", 1))


def untied_ops(region: Region, context: Context) -> Iterator[WeightedOp]:
    """Yield those whose weight and bias nothing else has: what is chosen for one op would not be the other's."""
    users = count_users(region)
    return (op for op in weighted_ops(region, context) if is_sole_user(op.module, users))


def with_own_bias(region: Region, context: Context) -> Iterator[WeightedOp]:
    """Yield those that have a bias, which nothing else has."""
    users = count_users(region)
    for op in weighted_ops(region, context):
        bias = op.module._parameters.get("bias")
        if bias is not None and users[id(bias)] <= 1:
            yield op


def weighted_ops(region: Region, context: Context) -> Iterator[WeightedOp]:
    """Yield all of them, in the order of the graph: static, dynamic and weight-only."""
    for node in region.graph.nodes:
        note = note_of(node)
        if note is None or note.weight is None or node.op != "call_module":
            continue
        op = context.ops.of_node(node, region)
        if op is None or op.channels_at is None or op.channel_axis != 0:  # embeddings, transposed convolutions
            continue
        module = region.get_submodule(str(node.target))
        weight = getattr(module, "weight", None)
        bias = getattr(module, "bias", None)
        has_zeros = isinstance(bias, Tensor) and bool((bias == 0).any())
        if isinstance(weight, Tensor):
            yield WeightedOp(
                node=node,
                op=op,
                module=module,
                weight=weight,
                spec=note.weight,
                tensor=float_name(region, activation_nodes(node, op)[0]),
                axis=op.channels_at,
                channels=int(weight.shape[1]) * int(getattr(module, "groups", 1)),
                keeps_zeros=has_zeros and may_divide_by(region, context, node),
            )
