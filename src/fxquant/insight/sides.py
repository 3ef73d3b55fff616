"""A float model and a quantized one, as graphs of which it is known which tensors are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx, nn

from fxquant.capture.canonical.as_plain import as_plain
from fxquant.capture.run_untraced import evaluating
from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.errors import StageError
from fxquant.export.reference import reference_of
from fxquant.graph.first_call import refuse_waiting
from fxquant.graph.region import regions, stage_of, user_class
from fxquant.graph.region_parts import Stage
from fxquant.graph.tree import tree_of
from fxquant.insight.rescaled import rescaled
from fxquant.insight.twin import Pair, capture_float, folded, pair_up
from fxquant.ops.table import OPS
from fxquant.quantize_fx import convert_to_reference_fx


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """`original` is the float model as regions, `reference` the QDQ model.

    `twin` is the original with its channels scaled as algorithms scaled those of the reference, for what is between
    the inputs and the outputs, and `fused` the twin with batch norms folded. `pairs` are the nodes of each region of
    the reference that have a partner in the twin.
    """

    original: nn.Module
    twin: nn.Module
    fused: nn.Module
    reference: nn.Module
    pairs: Mapping[str, Mapping[fx.Node, Pair]]


def set_side_by_side(
    float_model: nn.Module, quantized: nn.Module, batch: object, concrete: Mapping[str, object], caller: str
) -> Sides:
    """Capture the float model on a batch, and take the QDQ form of the other. Both stay as they are."""
    plain = as_plain(float_model, caller, training=False)
    if any(True for _ in regions(plain)):
        raise StageError(f"{caller} needs the float model first, then the quantized one.")
    reference = _reference(quantized, caller)
    with evaluating(plain), left_as_it_was(plain):
        original = capture_float(plain, batch, tree_of(reference), dict(concrete))
    twin = rescaled(original, reference)
    pairs = pair_up(reference, twin)
    _refuse_strangers(float_model, reference, pairs, caller)
    return Sides(original=original, twin=twin, fused=folded(twin), reference=reference, pairs=pairs)


def _refuse_strangers(
    float_model: nn.Module, reference: nn.Module, pairs: Mapping[str, Mapping[fx.Node, Pair]], caller: str
) -> None:
    """Raise if none of the layers that have weights is in the float model: it is another one."""
    weighted = [
        node in pairs.get(path, {})
        for path, region in regions(reference)
        for node in region.graph.nodes
        if (op := OPS.of_node(node, region)) is not None and op.has_weight
    ]
    if weighted and not any(weighted):
        raise StageError(
            f"{caller}: none of the {len(weighted)} layers with weights of the quantized model is in the float model, "
            f"a {user_class(float_model).__name__}. Give the model that it was made of."
        )


def _reference(quantized: nn.Module, caller: str) -> nn.Module:
    """Return the QDQ form of a model in any stage, without changing it."""
    refuse_waiting(quantized, caller)
    stages = {stage_of(region) for _, region in regions(quantized)}
    if Stage.PREPARED in stages:
        quantized = convert_to_reference_fx(quantized)
    return reference_of(quantized, caller)
