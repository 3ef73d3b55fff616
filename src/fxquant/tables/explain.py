"""The account of a quantized model: the Decision of each node, what was left in float, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor, fx, nn

from fxquant.capture.reasons import Cause
from fxquant.errors import StageError
from fxquant.export.reference import reference_of
from fxquant.flows.decide import decide
from fxquant.graph import torch_compat
from fxquant.graph.first_call import refuse_waiting
from fxquant.graph.lowering import reference_graph
from fxquant.graph.nodes import TensorInfo, full_path
from fxquant.graph.notes import LEFT_ALONE, WRAPPED, decision_of, note_of
from fxquant.graph.paths import is_within, join_path
from fxquant.graph.region import Region, engine_of, regions, runner_of, stage_of, user_class
from fxquant.graph.region_parts import Stage
from fxquant.graph.tree import Left, all_left, tree_of, weighted_parts
from fxquant.ops.table import OPS
from fxquant.tables.explanation import Explanation, Row


def explain(model: nn.Module) -> Explanation:
    """Tell what was decided for each node of a prepared or converted model, and for each module outside of its graphs.

    Of a prepared model it shows what `convert_fx` will decide for the target given to `prepare_fx`, or else for onednn.

    Example:
        >>> fq.explain(fq.quantize(model, loader)).weighted()
        (2, 2)
    """
    refuse_waiting(model, "explain")
    model = decide(model)
    found = list(_as_run(model))
    tree, known = tree_of(model), all_left(model)
    decided = any(stage_of(region) in (Stage.PREPARED, Stage.CONVERTED) for _, region in found)
    if not decided and not (known or tree.method):
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
    """Yield what modules of fxquant's own have to say, where no runtime runs them."""
    runtimes = [path for path, region in regions(model) if engine_of(region) not in ("onednn", "native")]
    for path, module in model.named_modules():
        if user_class(module).__module__.startswith("fxquant.modules.") and hasattr(module, "remark"):
            text = module.remark()
            if text and not any(is_within(path, runtime) for runtime in runtimes):
                yield path, text


def _as_run(model: nn.Module) -> Iterator[tuple[str, Region]]:
    """Yield the regions with the graphs that they run by: what oneDNN has no kernel for, a runtime may run in int8."""
    runtime = None
    for path, region in regions(model):
        engine = engine_of(region)
        if engine not in ("onednn", "native"):
            runtime = path  # with all that is inside
        if engine == "onednn" and (runtime is None or not is_within(path, runtime)):
            yield path, region
        else:
            reference = reference_of(region, "explain")
            assert isinstance(reference, Region)
            runner = runner_of(region)
            if runner is not None:
                _say_outside(reference, runner.outside, runner.unused)
            yield path, reference


def _say_outside(region: Region, reasons: Mapping[str, str], unused: str) -> None:
    """Say in the Decision of an op where native code is left for it, since it has no kernel, or took no call so far."""
    for node in region.graph.nodes:
        decision = decision_of(node)
        if decision is not None and node.name in reasons:
            reason = f"{decision.reason}; outside of native code: {reasons[node.name]}"
            node.meta["decision"] = replace(decision, reason=reason)
        elif decision is not None and unused and decision.status == "int8":
            node.meta["decision"] = replace(decision, reason=f"{decision.reason}; so far on onednn, {unused}")


def _rows(path: str, region: Region) -> Iterator[Row]:
    runner = runner_of(region)
    failed = "" if runner is None else runner.failed
    for node in region.graph.nodes:
        decision, note = decision_of(node), note_of(node)
        if decision is None:
            continue
        if failed and decision.status == "int8":
            decision = replace(decision, reason=f"{decision.reason}; on onednn: {failed}")
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


def _call_hint(module: nn.Module) -> str:
    """Say what to do about a module that a graph calls without looking into it."""
    if hasattr(type(module), WRAPPED):
        return Cause.WRAPPED.hint
    if torch_compat.is_scripted(module):
        return Cause.SCRIPTED.hint
    stock = type(module).__module__.startswith("torch.nn") and LEFT_ALONE not in module.__dict__
    return Cause.NO_FORM.hint if stock else Cause.CONFIGURED.hint


def _left_calls(path: str, region: Region, known: tuple[Left, ...]) -> Iterator[Left]:
    """Modules that a graph calls without looking into them, with weights that so stay in float."""
    paths = {left.path for left in known}
    inside = _opaque(path, region)
    for node in region.graph.nodes:
        at, decision = join_path(path, str(node.target)), decision_of(node)
        if node.op != "call_module" or decision is None or at in paths or not any(is_within(p, at) for p in inside):
            continue
        paths.add(at)
        module = region.get_submodule(str(node.target))
        name, where = user_class(module).__name__, str(node.meta.get("where", ""))
        yield Left(path=at, module=name, reason=decision.reason, where=where, hint=_call_hint(module))
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
    used = {str(node.target) for node in reference_graph(region).nodes if node.op in ("call_module", "get_attr")}
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
