"""Give every quantized tensor a quantizer id; ids of tensors that must share a scale are united.

One quantizer per produced tensor: the producer's output spec where it runs in int8, otherwise the consumer's input
spec. A SHARE op puts its inputs and output on one grid.
"""

from __future__ import annotations

from torch import fx

from fxquant.core.graph import Region
from fxquant.core.nodes import TensorInfo
from fxquant.core.ops import Role, activation_nodes
from fxquant.core.plan import Note
from fxquant.core.spec import Learn, Spec
from fxquant.core.target import Target
from fxquant.errors import ConfigError
from fxquant.passes.candidates import Candidate, is_float_tensor


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
    region: Region, kept: dict[fx.Node, Candidate], groups: dict[fx.Node, fx.Node], target: Target
) -> tuple[dict[fx.Node, Note], dict[str, Spec]]:
    """Notes for all kept nodes, and the spec of each quantizer."""
    ids = _Ids()
    outputs = _output_ids(kept, groups, ids)
    inputs: dict[fx.Node, list[str | None]] = {}
    for node, candidate in kept.items():
        inputs[node] = (
            _input_ids(node, candidate, groups, outputs, ids) if candidate.mode in ("static", "dynamic") else []
        )
    shared: set[fx.Node] = set()
    for node, candidate in kept.items():
        present = [name for name in inputs[node] if name is not None]
        exempted = len(present) != len(inputs[node])
        if node in outputs and node not in groups and _shares(candidate, target) and present and not exempted:
            shared.add(node)
            for name in present:
                ids.unite(name, outputs[node])
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


def _shares(candidate: Candidate, target: Target) -> bool:
    return candidate.mode == "static" and (candidate.op.role is Role.SHARE or candidate.op.kind in target.share)


def _output_ids(kept: dict[fx.Node, Candidate], groups: dict[fx.Node, fx.Node], ids: _Ids) -> dict[fx.Node, str]:
    """The quantizer of each int8 node whose output an int8 kernel takes; inside a group only the last node has one."""
    outputs: dict[fx.Node, str] = {}
    for node, candidate in kept.items():
        if candidate.mode != "static" or not is_float_tensor(node):
            continue
        if any(user in groups and groups[user] is groups.get(node) for user in node.users):
            continue
        spec = candidate.qconfig.output_spec
        if spec is None or spec.dynamic or not _is_taken(node, kept):
            continue
        if candidate.op.range is not None:
            spec = spec.stored().with_(observer="fixed", range=candidate.op.range, learn=None)
        outputs[node] = ids.add(node.name, spec)
    return outputs


def _is_taken(node: fx.Node, kept: dict[fx.Node, Candidate]) -> bool:
    for user in node.users:
        candidate = kept.get(user)
        if candidate is None or candidate.mode != "static":
            continue
        operands = activation_nodes(user, candidate.op)
        if any(n is node and candidate.qconfig.input_spec(i) is not None for i, n in enumerate(operands)):
            return True
    return False


def _input_ids(
    node: fx.Node,
    candidate: Candidate,
    groups: dict[fx.Node, fx.Node],
    outputs: dict[fx.Node, str],
    ids: _Ids,
) -> list[str | None]:
    found: list[str | None] = []
    for index, operand in enumerate(activation_nodes(node, candidate.op)):
        spec = candidate.qconfig.input_spec(index)
        inside = node in groups and groups.get(operand) is groups[node]
        if spec is None or inside or not is_float_tensor(operand):
            found.append(None)
            continue
        explicit = candidate.qconfig.explicit_input_spec(index)
        produced = outputs.get(operand)
        if produced is not None and not spec.dynamic and (explicit is None or explicit == ids.specs[produced]):
            found.append(produced)
        elif isinstance(operand.meta.get("tensor"), (TensorInfo, tuple)):
            found.append(_edge_id(operand, spec, ids))
        else:
            found.append(None)
    return found


def _edge_id(operand: fx.Node, spec: Spec, ids: _Ids) -> str:
    """A quantizer on the way into a kernel, one for all that take the tensor with the same spec."""
    name, count = f"{operand.name}_in", 0
    while name in ids.specs and ids.specs[name] != spec:
        count += 1
        name = f"{operand.name}_in_{count}"
    return ids.add(name, spec)
