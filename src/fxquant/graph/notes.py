"""What annotate decides for a node, as plain values in `node.meta["note"]` and `node.meta["decision"]`.

Quantizers are named by string ids; the region holds the spec of each (`Preparation.quantizers`). Nodes with the same
`group` form one kernel: only the inputs and the final output of the group are quantized.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import fx

from fxquant.config.spec import Int32, Spec
from fxquant.config.target import Target

# on functions and module classes whose body is left as written (capture/symbolic/wrap.py)
WRAPPED = "__fxquant_wrapped__"
# on modules in which nothing is quantized, since the custom config says so
LEFT_ALONE = "_fxquant_left_alone"
OBSERVED = "_fxquant_custom"  # on a custom module that observes, the user's own: the QuantType it was made for
# where a region has what was seen of its tensors, unless the user's model has something there
STATISTICS = "statistics"

Status = Literal["int8", "dynamic", "weight_only", "float16", "float"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """How a node is quantized. `inputs[i]` is the quantizer of the i-th activation operand, or None for float."""

    inputs: tuple[str | None, ...] = ()
    output: str | None = None
    weight: Spec | None = None
    bias: Spec | Int32 | None = None
    group: str | None = None
    half: bool = False  # the weight is stored as float16
    observe_output: bool = True  # False where the output lies on the input's grid anyway


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What was decided for a node, and why. `rule` is the configuration rule that won."""

    kind: str
    status: Status
    reason: str
    rule: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewrite:
    """What a pass did to an op for the hardware: the pass, and how. `curves`: the function before and after."""

    name: str
    text: str
    curves: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRequest:
    """What prepare_fx was asked for about a region, beside the rules (`meta["choice"]`).

    `target` is None where the engine is to say. `inputs` and `outputs` are to be integers, with `boundary` as their
    spec where no kernel has one. `own_rules`: a standalone module with rules of its own.
    """

    target: Target | None = None
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    boundary: Spec | None = None
    own_rules: bool = False


def note_of(node: fx.Node) -> Note | None:
    note = node.meta.get("note")
    return note if isinstance(note, Note) else None


def decision_of(node: fx.Node) -> Decision | None:
    decision = node.meta.get("decision")
    return decision if isinstance(decision, Decision) else None


def remark(node: fx.Node, text: str) -> None:
    """Add to the reason of a node's Decision; before there is one, `meta["remarks"]` keeps it for annotate."""
    decision = decision_of(node)
    if decision is None:
        node.meta["remarks"] = (*node.meta.get("remarks", ()), text)
    else:
        node.meta["decision"] = replace(decision, reason=f"{decision.reason}; {text}")
