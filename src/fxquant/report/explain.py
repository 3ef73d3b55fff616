"""The account of a quantized model: the Decision of each node, what was left in float, and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rich.console import Console, Group
from rich.table import Table
from torch import Tensor, fx, nn

from fxquant.capture.hints import hint
from fxquant.core.encode import decode_graph
from fxquant.core.graph import Region, engine_of, regions, user_class
from fxquant.core.nodes import TensorInfo, full_path
from fxquant.core.ops import OPS
from fxquant.core.paths import is_within, join_path
from fxquant.core.plan import decision_of, note_of
from fxquant.core.tree import Left, all_left, tree_of, weighted_parts
from fxquant.core.waiting import refuse_waiting
from fxquant.errors import StageError
from fxquant.export.reference import reference_of
from fxquant.flows.decide import decide


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One node. `group` is the anchor of its kernel, `inputs` and `output` are the quantizer ids, `where` a line."""

    region: str
    node: str
    path: str
    kind: str
    status: str
    reason: str
    rule: str
    group: str
    weight: str
    inputs: tuple[str | None, ...]
    output: str | None
    where: str

    @property
    def is_weighted(self) -> bool:
        op = OPS.by_kind.get(self.kind)
        return op is not None and op.has_weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The rows of all regions, and the modules outside of them; printing it shows tables.

    `left` are modules that stay in float, each with the reason, the line of code and a hint. `opaque` counts the
    weighted ops inside modules that no graph looks into, by path. `boundaries` counts the float tensors that go in and
    out of regions. `remarks` are what else there is to say of a module, with its path.
    """

    rows: tuple[Row, ...]
    left: tuple[Left, ...] = ()
    opaque: tuple[tuple[str, int], ...] = ()
    regions: tuple[str, ...] = ()
    boundaries: int = 0
    method: str = ""
    remarks: tuple[tuple[str, str], ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def counts(self) -> dict[str, int]:
        """How many nodes have each status."""
        return dict(Counter(row.status for row in self.rows))

    def weighted(self) -> tuple[int, int]:
        """(weighted ops with int8 weights or better, all weighted ops), in regions and outside."""
        idle = {left.path for left in self.left if not left.reached}  # on an arm that no data took
        found = [row for row in self.rows if row.is_weighted and not (row.status == "float" and row.path in idle)]
        quantized = sum(row.status not in ("float", "float16") for row in found)
        return quantized, len(found) + sum(count for _, count in self.opaque)

    @property
    def int8_share(self) -> float:
        """The share of the weighted ops that are quantized, from 0 to 1."""
        quantized, every = self.weighted()
        return quantized / every if every else 1.0

    def table(self) -> Table:
        """The rows as a rich table."""
        table = Table(title=self.summary(), title_justify="left", box=None, pad_edge=False)
        for column in ("node", "path", "kind", "runs in", "rule", "why"):
            table.add_column(column, overflow="fold")
        for row in self.rows:
            style = "yellow" if row.status == "float" else ""
            table.add_row(row.node, row.path, row.kind, row.status, row.rule, row.reason, style=style)
        return table

    def left_table(self) -> Table:
        """The modules left in float as a rich table."""
        table = Table(title="left in float, outside of the graphs", title_justify="left", box=None, pad_edge=False)
        for column in ("module", "class", "why", "where", "what to do"):
            table.add_column(column, overflow="fold")
        for left in self.left:
            table.add_row(left.path or "<root>", left.module, left.reason, _short(left.where), left.hint)
        return table

    def summary(self) -> str:
        """One line."""
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))
        quantized, every = self.weighted()
        share = f"{quantized} of {every} weighted ops quantized ({self.int8_share:.0%})"
        if not every and not quantized:
            share = "nothing to quantize: no op has weights"
        parts = f"{len(self.regions)} region{'s' * (len(self.regions) != 1)}"
        if self.boundaries:
            parts += f" with {self.boundaries} float boundaries"
        return f"{counts or 'nothing'} of {len(self.rows)} ops; {share}; {parts}"

    def __str__(self) -> str:
        console = Console(width=140, no_color=True, force_terminal=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __rich__(self) -> Group:
        remarks = [f"{path or '<root>'}: {text}" for path, text in self.remarks]
        return Group(self.table(), *([self.left_table()] if self.left else []), *remarks)


def explain(model: nn.Module) -> Explanation:
    """What was decided for each node of a prepared or converted model, and for each module outside of its graphs.

    Of a prepared model it shows what `convert_fx` will decide for the target given to `prepare_fx`, or else for onednn.
    """
    refuse_waiting(model, "explain")
    model = decide(model)
    found = list(_as_run(model))
    tree, known = tree_of(model), all_left(model)
    if not any(region._region.stage in ("prepared", "converted") for _, region in found) and not (known or tree.method):
        raise StageError("explain needs a model from prepare_fx, convert_fx or quantize.")
    opaque = {left.path: left.weighted for left in known if left.weighted and left.reached}
    for path, region in found:
        opaque.update(_opaque(path, region))
    return Explanation(
        rows=tuple(row for path, region in found for row in _rows(path, region)),
        left=(
            *known,
            *(left for path, region in found for left in _left_calls(path, region, known)),
            *(left for path, region in found if not path for left in _idle(region)),
        ),
        opaque=tuple(sorted(opaque.items())),
        regions=tuple(path for path, _ in found),
        boundaries=sum(_boundaries(region) for path, region in found if path),
        method=tree.method,
        remarks=tuple(_remarks(model)),
    )


def _remarks(model: nn.Module) -> Iterator[tuple[str, str]]:
    """What modules of fxquant's own have to say, where no runtime runs them."""
    runtimes = [path for path, region in regions(model) if engine_of(region) not in ("onednn", "native")]
    for path, module in model.named_modules():
        if user_class(module).__module__.startswith("fxquant.modules.") and hasattr(module, "remark"):
            text = module.remark()
            if text and not any(is_within(path, runtime) for runtime in runtimes):
                yield path, text


def _as_run(model: nn.Module) -> Iterator[tuple[str, Region]]:
    """The regions with the graphs that they run by: what oneDNN has no kernel for, a runtime may run in int8."""
    runtime = None
    for path, region in regions(model):
        if engine_of(region) != "onednn":
            runtime = path
        if runtime is None or not is_within(path, runtime):
            yield path, region
        else:
            reference = reference_of(region, "explain")
            assert isinstance(reference, Region)
            _say_outside(reference, getattr(region._region.runner, "outside", {}))
            yield path, reference


def _say_outside(region: Region, reasons: Mapping[str, str]) -> None:
    """Where native code is left for an op that it has no kernel for, the Decision says so."""
    for node in region.graph.nodes:
        decision = decision_of(node)
        if decision is not None and node.name in reasons:
            reason = f"{decision.reason}; outside of native code: {reasons[node.name]}"
            node.meta["decision"] = replace(decision, reason=reason)


def _rows(path: str, region: Region) -> Iterator[Row]:
    for node in region.graph.nodes:
        decision, note = decision_of(node), note_of(node)
        if decision is None:
            continue
        yield Row(
            region=path,
            node=node.name,
            path=full_path(region, node),
            kind=decision.kind,
            status=decision.status,
            reason=decision.reason,
            rule=decision.rule,
            group=note.group or "" if note is not None else "",
            weight=str(note.weight) if note is not None and note.weight is not None else "",
            inputs=note.inputs if note is not None else (),
            output=note.output if note is not None else None,
            where=str(node.meta.get("where", "")),
        )


def _opaque(path: str, region: Region) -> dict[str, int]:
    """Weighted ops inside the modules that a graph calls without looking into them."""
    found: dict[str, int] = {}
    for node in region.graph.nodes:
        if node.op != "call_module" or OPS.of_node(node, region) is not None:
            continue
        for at, count in weighted_parts(region.get_submodule(str(node.target))).items():
            found[join_path(path, str(node.target), at)] = count
    found.update({join_path(path, owner): 1 for owner, _ in _passed_weights(region)})
    return found


def _passed_weights(region: Region) -> Iterator[tuple[str, fx.Node]]:
    """(module, call) where a graph hands the float weight of a module to a function that it does not look into."""
    for node in region.graph.nodes:
        owner, _, name = str(node.target).rpartition(".")
        if node.op != "get_attr" or name != "weight" or "" not in weighted_parts(region.get_submodule(owner)):
            continue
        call = next((user for user in node.users if OPS.of_node(user, region) is None), None)
        if call is not None and call.op in ("call_function", "call_method"):
            yield owner, call


def _left_calls(path: str, region: Region, known: tuple[Left, ...]) -> Iterator[Left]:
    """Modules that a graph calls without looking into them, with weights that so stay in float."""
    paths = {left.path for left in known}
    inside = _opaque(path, region)
    for node in region.graph.nodes:
        at, decision = join_path(path, str(node.target)), decision_of(node)
        if node.op != "call_module" or decision is None or at in paths or not any(is_within(p, at) for p in inside):
            continue
        paths.add(at)
        name = user_class(region.get_submodule(str(node.target))).__name__
        where = str(node.meta.get("where", ""))
        yield Left(path=at, module=name, reason=decision.reason, where=where, hint=hint(decision.reason))
    for owner, call in _passed_weights(region):
        function = getattr(call.target, "__name__", str(call.target))
        yield Left(
            path=join_path(path, owner),
            module=user_class(region.get_submodule(owner)).__name__,
            reason=f"its weight is passed to {function}, which is called as written",
            where=str(call.meta.get("where", "")),
            hint=f"Call the module itself, or let {function} be traced: it is wrapped.",
        )


def _idle(region: Region) -> Iterator[Left]:
    """Modules with weights that the graph of a whole model does not call."""
    if any(node.op == "get_attr" and node.target == "_self" for node in region.graph.nodes):
        return  # code of the model's own runs, and may
    graph = decode_graph(region._region.reference) if region._region.reference is not None else region.graph
    used = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    for at, module in region.named_modules():
        op = OPS.of(type(module))
        weighted = op is not None and op.has_weight and isinstance(module._parameters.get("weight"), Tensor)
        if weighted and not any(is_within(path, at) or is_within(at, path) for path in used):
            why = "never called: its weights are left out of files"
            yield Left(path=at, module=user_class(module).__name__, reason=why, reached=False)


def _boundaries(region: Region) -> int:
    tensors = [node.meta.get("tensor") for node in region.graph.nodes if node.op == "placeholder"]
    for node in region.graph.nodes:
        if node.op == "output":
            tensors += [source.meta.get("tensor") for source in node.all_input_nodes]
    return sum(isinstance(info, TensorInfo) and info.is_float for info in tensors)


def _short(where: str) -> str:
    """`file.py:12 in forward`, without the directories."""
    head, _, rest = where.partition(":")
    return f"{os.path.basename(head)}:{rest}" if rest else where
