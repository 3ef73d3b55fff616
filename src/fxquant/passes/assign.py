"""Give every quantized tensor a quantizer id; ids of tensors that must share a scale are united.

One quantizer per produced tensor: the producer's output spec where it runs in int8, otherwise the consumer's input
spec. A SHARE op puts its inputs and output on one grid. What only depthwise convolutions take may have a scale for each
channel (channel_inputs.py). What others take as well has two grids, that of the depthwise ones from the float tensor.
"""

from __future__ import annotations

from torch import fx

from fxquant.config.spec import Learn, Spec
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import Note
from fxquant.graph.region import Region
from fxquant.ops.table import Role, activation_nodes
from fxquant.passes.candidates import Candidate, choice_of, is_float_tensor
from fxquant.passes.channel_inputs import channel_inputs


class _Ids:
    """Quantizer ids with their specs; a small union-find."""

    def __init__(self) -> None:
        self.specs: dict[str, Spec] = {}
        self._parent: dict[str, str] = {}

    def add(self, name: str, spec: Spec) -> str:
        if name not in self.specs:
            self.specs[name] = spec
            self._parent[name] = name
        return name

    def find(self, name: str) -> str:
        while self._parent[name] != name:
            name = self._parent[name]
        return name

    def unite(self, a: str, b: str) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if self.specs[a].observer == "fixed":  # a known range does not cover the other tensors of the group
            a, b = b, a
        self._parent[b] = a

    def sign(self, name: str) -> None:
        """Make a grid signed, with a zero point of 0."""
        spec = self.specs[self.find(name)]
        if spec.factory is not None and not (spec.signed and spec.symmetric):
            raise ConfigError(
                f"tensor {name!r} has an observer of the user's own ({spec}), and the kernel that takes it asks for a "
                "signed grid without zero point. Give the op another qconfig, or the observer that dtype and qscheme."
            )
        learn: Learn | None = "lsq" if spec.learn == "lsq+" else spec.learn  # lsq+ learns an offset
        self.specs[self.find(name)] = spec.with_(signed=True, symmetric=True, learn=learn)


def assign_quantizers(
    region: Region,
    kept: dict[fx.Node, Candidate],
    groups: dict[fx.Node, fx.Node],
    target: Target,
    training: bool,
) -> tuple[dict[fx.Node, Note], dict[str, Spec]]:
    """Notes for all kept nodes, and the spec of each quantizer."""
    ids = _Ids()
    outputs = _output_ids(kept, groups, target, ids)
    by_channel = {} if training else channel_inputs(region, kept, target)
    for node in [node for node in by_channel if _comes_shared(node, kept, groups, target)]:
        del by_channel[node]
    for node, name in outputs.items():
        takers = _takers(node, kept)
        wanted = {by_channel.get(taker) for taker in takers}
        if len(wanted) == 1 and (spec := wanted.pop()) is not None and ids.specs[name].observer == "histogram":
            ids.specs[name] = spec
    inputs: dict[fx.Node, list[str | None]] = {}
    for node, candidate in kept.items():
        inputs[node] = (
            _input_ids(node, candidate, groups, outputs, ids, by_channel.get(node))
            if candidate.mode in ("static", "dynamic")
            else []
        )
    shared: set[fx.Node] = set()
    for node, candidate in kept.items():
        present = [name for name in inputs[node] if name is not None]
        exempted = len(present) != len(inputs[node])
        last = _last_scaled(node, kept, groups)
        if last in outputs and _shares(candidate, target) and present and not exempted:
            shared.add(last)
            for name in present:
                ids.unite(name, outputs[last])
    for node, candidate in kept.items():
        if candidate.op.kind in target.signed:
            for name in filter(None, inputs[node]):
                ids.sign(name)
    notes = {}
    for node, candidate in kept.items():
        output = ids.find(outputs[node]) if node in outputs else None
        anchor = groups.get(node)
        notes[node] = Note(
            inputs=tuple(ids.find(name) if name is not None else None for name in inputs[node]),
            output=output if not isinstance(node.meta.get("tensor"), tuple) else None,
            weight=candidate.weight,
            bias=candidate.qconfig.bias if candidate.weight is not None else None,
            half=candidate.mode == "float16",
            group=anchor.name if anchor is not None else node.name,
            observe_output=node not in shared,
        )
    used = {name for note in notes.values() for name in (*note.inputs, note.output) if name is not None}
    return notes, {name: ids.specs[name] for name in ids.specs if name in used}


def _last_scaled(node: fx.Node, kept: dict[fx.Node, Candidate], groups: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """Tell where the values of an op leave its kernel as they are, or times a number; None inside of other groups."""
    if node not in groups:
        return node
    tail = next((user for user in node.users if groups.get(user) is node), None)
    return tail if groups[node] is node and tail is not None and kept[tail].op.multiplies else None


def _shares(candidate: Candidate, target: Target) -> bool:
    return candidate.mode == "static" and (candidate.op.role is Role.SHARE or candidate.op.kind in target.share)


def _output_ids(
    kept: dict[fx.Node, Candidate], groups: dict[fx.Node, fx.Node], target: Target, ids: _Ids
) -> dict[fx.Node, str]:
    """Return the quantizer of each int8 node whose output an int8 kernel takes, or the target rounds in any case.

    Inside a group only the last node has one.
    """
    outputs: dict[fx.Node, str] = {}
    ahead = _before_products(kept)
    for node, candidate in kept.items():
        if candidate.mode != "static" or not is_float_tensor(node):
            continue
        if any(user in groups and groups[user] is groups.get(node) for user in node.users):
            continue
        spec = candidate.qconfig.output_spec
        writes = target.integer_outputs or _takers(node, kept) or _is_rounded(node, kept, groups, target, ahead)
        if spec is None or spec.dynamic or not writes:
            continue
        known = target.ranges.get(candidate.op.kind, candidate.op.range)
        if known is not None:
            spec = spec.stored().with_(observer="fixed", range=known, learn=None)
        outputs[node] = ids.add(node.name, spec)
    return outputs


def _before_products(kept: dict[fx.Node, Candidate]) -> set[fx.Node]:
    """Return the nodes behind which, however far, there is an int8 product: all but the last layers of a model."""
    todo = [node for node, candidate in kept.items() if candidate.mode == "static" and candidate.op.is_product]
    found: set[fx.Node] = set()
    while todo:
        new = [source for source in todo.pop().all_input_nodes if source not in found]
        found.update(new)
        todo += new
    return found


def _is_rounded(
    node: fx.Node,
    kept: dict[fx.Node, Candidate],
    groups: dict[fx.Node, fx.Node],
    target: Target,
    ahead: set[fx.Node],
) -> bool:
    """Tell whether a target rounds an output that only float ops read, and nothing says that these are to have floats.

    A rule, or a lift, may have left one of them in float for its accuracy.
    """
    if kept[groups.get(node, node)].op.kind not in target.rounded_outputs or node not in ahead:
        return False
    choices = [choice_of(user) for user in node.users if is_float_tensor(user)]
    asked = [None if choice is None else choice.qconfig for choice in choices]
    return all(qconfig is not None and qconfig.activation is not None and not qconfig.is_dynamic for qconfig in asked)


def _takers(node: fx.Node, kept: dict[fx.Node, Candidate]) -> list[fx.Node]:
    """Return the int8 kernels that take the tensor of a node as integers."""
    found = []
    for user in node.users:
        candidate = kept.get(user)
        if candidate is None or candidate.mode != "static":
            continue
        operands = activation_nodes(user, candidate.op)
        if any(n is node and candidate.qconfig.input_spec(i) is not None for i, n in enumerate(operands)):
            found.append(user)
    return found


def _comes_shared(
    node: fx.Node, kept: dict[fx.Node, Candidate], groups: dict[fx.Node, fx.Node], target: Target
) -> bool:
    """Tell whether the input of a kernel lies on the grid of other tensors."""
    operand = activation_nodes(node, kept[node].op)[0]
    return operand in kept and operand not in groups and _shares(kept[operand], target)


def _input_ids(
    node: fx.Node,
    candidate: Candidate,
    groups: dict[fx.Node, fx.Node],
    outputs: dict[fx.Node, str],
    ids: _Ids,
    by_channel: Spec | None,
) -> list[str | None]:
    found: list[str | None] = []
    for index, operand in enumerate(activation_nodes(node, candidate.op)):
        spec = by_channel or candidate.qconfig.input_spec(index)
        inside = node in groups and groups.get(operand) is groups[node]
        if spec is None or inside or not is_float_tensor(operand):
            found.append(None)
            continue
        explicit = by_channel or candidate.qconfig.explicit_input_spec(index)
        produced = outputs.get(operand)
        if produced is not None and not spec.dynamic and (explicit is None or explicit == ids.specs[produced]):
            found.append(produced)
        elif isinstance(operand.meta.get("tensor"), (TensorInfo, tuple)):
            found.append(_edge_id(operand, spec, ids))
        else:
            found.append(None)
    return found


def _edge_id(operand: fx.Node, spec: Spec, ids: _Ids) -> str:
    """Return a quantizer on the way into a kernel, one for all that take the tensor with the same spec."""
    name, count = f"{operand.name}_in", 0
    while name in ids.specs and ids.specs[name] != spec:
        count += 1
        name = f"{operand.name}_in_{count}"
    return ids.add(name, spec)
