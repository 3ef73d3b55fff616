"""Which nodes could run in int8, by rule, op table and target; a Decision with the reason for the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import getitem
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from fxquant.config.qconfig import QConfig
from fxquant.config.rules import Choice, Site
from fxquant.config.spec import Spec
from fxquant.config.target import Target
from fxquant.graph import torch_compat
from fxquant.graph.hooks import has_forward_hooks
from fxquant.graph.nodes import TensorInfo, full_path, tensor_info
from fxquant.graph.notes import LEFT_ALONE, WRAPPED, Decision
from fxquant.graph.paths import join_path, name_place
from fxquant.graph.region import Region, origin_of
from fxquant.ops.table import Op, OpTable, Role, activation_nodes, argument
from fxquant.passes.refuse import no_kernel, refuse

Mode = Literal["static", "dynamic", "weight_only", "float16"]

MADE_OF_PARAMETERS = "its weight is computed at run time, from parameters alone"
_SHORT = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A node that may be quantized, with the rule that says how."""

    node: fx.Node
    op: Op
    qconfig: QConfig
    rule: str
    mode: Mode
    weight: Spec | None


def same_op(ops: OpTable, a: object, b: object) -> bool:
    """Tell whether two spellings name one op; two module classes have to be the same class."""
    if a is b or (isinstance(a, str) and a == b):
        return True
    if isinstance(a, type) and isinstance(b, type):
        return False
    row = ops.of(a)
    return row is not None and row is ops.of(b)


def sites(region: Region, ops: OpTable) -> dict[fx.Node, Site]:
    """Return what the rules are asked about: every call in the region."""
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[fx.Node, Site] = {}
    origin, leaving = origin_of(region), _leaving(region, ops)
    for node in region.graph.nodes:
        if node.op not in ("call_module", "call_function", "call_method"):
            continue
        op = ops.of_node(node, region)
        spelling: Any = type(region.get_submodule(str(node.target))) if node.op == "call_module" else node.target
        kind = op.kind if op is not None else str(getattr(spelling, "__name__", spelling))
        path = full_path(region, node)
        scope = (*origin.outer, *((join_path(origin.path, at), cls) for at, cls in node.meta.get("scope", ())))
        parents = scope[:-1] if node.op == "call_module" and scope and scope[-1][0] == path else scope
        parent = parents[-1][0] if parents else ""
        order = counts[parent, kind] + origin.order
        found[node] = Site(
            path=path,
            kind=kind,
            spelling=spelling,
            scope=parents,
            order=order,
            is_output=node in leaving,
            place=name_place(origin.path, path, node.name, op is not None and op.has_weight),
        )
        counts[parent, kind] += 1
    return found


def _leaving(region: Region, ops: OpTable) -> set[fx.Node]:
    """Return the nodes whose values leave the region, as they are or only moved."""
    found: set[fx.Node] = set()
    for node in reversed(region.graph.nodes):
        op = ops.of_node(node, region)
        if node.op == "output" or (node in found and (node.target is getitem or (op is not None and op.moves))):
            found.update(node.all_input_nodes)
    return found


def choice_of(node: fx.Node) -> Choice | None:
    """Return the rule that won at a node; see choose.py."""
    choice = node.meta.get("choice")
    return choice if isinstance(choice, Choice) else None


def is_float_tensor(node: fx.Node) -> bool:
    """Tell whether the node is known to return a float tensor, or a tuple that holds one."""
    info = node.meta.get("tensor")
    if isinstance(info, tuple):
        return any(isinstance(item, TensorInfo) and item.is_float for item in info)
    return isinstance(info, TensorInfo) and info.is_float


def find_candidates(
    region: Region, target: Target, ops: OpTable
) -> tuple[dict[fx.Node, Candidate], dict[fx.Node, Decision]]:
    """Candidates, and a Decision for every other node that returns a float tensor."""
    candidates: dict[fx.Node, Candidate] = {}
    decisions: dict[fx.Node, Decision] = {}
    for node, site in sites(region, ops).items():
        choice = choice_of(node)
        if choice is None or not is_float_tensor(node):
            continue
        op = ops.of_node(node, region)
        found = _judge(node, op, choice, target, region)
        if isinstance(found, Candidate):
            candidates[node] = found
        else:
            decisions[node] = Decision(kind=site.kind, status="float", reason=found, rule=choice.rule)
    return candidates, decisions


def _judge(node: fx.Node, op: Op | None, choice: Choice, target: Target, region: Region) -> Candidate | str:
    """Return a candidate, or the reason why not."""
    qconfig = choice.qconfig
    if is_left_alone(node, region):
        return "non-traceable, by the custom config"
    if op is None:
        return _unknown_reason(node, region)
    if op.role is Role.FLOAT:
        return f"{op.kind} runs in float"
    if qconfig is None:
        return "the rule leaves it in float" if choice.rule != "global" else "no rule asks for quantization"
    if node.meta.get("mutated"):
        return "its tensor is changed in place"
    module = region.get_submodule(str(node.target)) if node.op == "call_module" else None
    if module is not None and not op.has_weight and has_forward_hooks(module):
        return "it has hooks, which may change what it returns"
    if op.unless is not None and (reason := op.unless(node, module)) is not None:
        return reason
    if op.has_weight and module is None:
        return _weight_reason(node, op)
    mode = _mode(op, qconfig)
    if mode is None:
        return _mode_reason(op, qconfig)
    if mode == "float16" and module is not None and module.weight.dtype in _SHORT:
        return f"its weight is {str(module.weight.dtype).removeprefix('torch.')} as it is"
    if mode not in ("weight_only", "float16") and op.kind not in target.kinds:
        return no_kernel(target, op.kind)
    for operand in activation_nodes(node, op):
        info = tensor_info(operand)
        if info is not None and not info.is_float:
            return f"operand {operand.name} is {str(info.dtype).removeprefix('torch.')}"
    weight = weight_spec(op, qconfig, module) if op.has_weight and module is not None else None
    if mode == "static" and weight is not None:
        weight = _within(weight, target.weight)
    if mode == "static" and (reason := refuse(target, node, op, qconfig, weight, module)) is not None:
        return reason
    return Candidate(node=node, op=op, qconfig=qconfig, rule=choice.rule, mode=mode, weight=weight)


def is_left_alone(node: fx.Node, region: Region) -> bool:
    """Tell whether the custom config says that nothing in the module that a node calls is quantized."""
    return node.op == "call_module" and LEFT_ALONE in region.get_submodule(str(node.target)).__dict__


def _mode(op: Op, qconfig: QConfig) -> Mode | None:
    if op.has_weight:
        if qconfig.weight is None:
            return None
        if qconfig.weight == "float16":
            return "float16"
        if qconfig.activation is None or not op.operands:
            return "weight_only"
        return "dynamic" if qconfig.is_dynamic else "static"
    return None if qconfig.activation is None or qconfig.is_dynamic else "static"


def _unknown_reason(node: fx.Node, region: Region) -> str:
    called: Any = region.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    if isinstance(called, Region):
        return "a region of its own, with decisions of its own"
    if hasattr(type(called) if isinstance(called, nn.Module) else called, WRAPPED):
        return "wrapped: its body is left as written, modules in it have decisions of their own"
    if isinstance(called, nn.Module) and any(isinstance(part, Region) for part in called.modules()):
        return "left as written; the regions in it have decisions of their own"
    if isinstance(called, nn.Module) and torch_compat.is_scripted(called):
        return "TorchScript: one call, into which no graph looks"
    if isinstance(called, nn.Module) and not type(called).__module__.startswith("torch.nn"):
        return "non-traceable: one call, into which no graph looks"
    return "not in the op table"


def _weight_reason(node: fx.Node, op: Op) -> str:
    """Tell why a function's weight could not be made that of a module."""
    weight = argument(node, op, op.params.index("weight"))
    if isinstance(weight, fx.Node) and weight.op == "get_attr":
        if weight.meta.get("mutated"):
            return "its weight is changed in place"
        info = tensor_info(weight)
        if info is not None and not info.is_float:
            return f"its weight is {str(info.dtype).removeprefix('torch.')}"
        return "its settings are computed at run time"
    if isinstance(weight, fx.Node) and weight.op == "placeholder":
        return "its weight is an input of the model"
    if isinstance(weight, fx.Node) and _needs_no_input(weight):
        return MADE_OF_PARAMETERS
    return "its weight is computed at run time"


def _needs_no_input(node: fx.Node) -> bool:
    pending, seen = [node], {node}
    while pending:
        each = pending.pop()
        if each.op == "placeholder":
            return False
        pending += [source for source in each.all_input_nodes if source not in seen]
        seen.update(pending)
    return True


def _mode_reason(op: Op, qconfig: QConfig) -> str:
    if op.has_weight:
        return "the qconfig has no weight spec"
    mode = "weight-only" if qconfig.activation is None else "dynamic"
    return f"{mode} quantization is for ops with weights"


def _within(spec: Spec, default: Spec) -> Spec:
    """A spec of weights that leaves its limits open keeps to those of the target."""
    alike = (spec.bits, spec.signed) == (default.bits, default.signed)
    return spec.with_(limits=default.limits) if alike and spec.limits is None else spec


def weight_spec(op: Op, qconfig: QConfig, module: nn.Module) -> Spec | None:
    """Return the weight spec for this op.

    Axis 0 means its output channels, groups need 2-D weights that they divide.
    """
    spec = qconfig.weight
    if not isinstance(spec, Spec):
        return None
    if spec.granularity == "per_channel" and spec.axis == 0 and op.channel_axis != 0:
        return spec.with_(axis=op.channel_axis)
    if spec.granularity == "per_group":
        weight, size = module.weight, spec.group_size or 1
        if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.shape[-1] % size:
            return spec.with_(granularity="per_channel", axis=op.channel_axis, group_size=None)
    return spec
