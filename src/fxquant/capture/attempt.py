"""One attempt at a whole module: a symbolic trace or torch.export, then the passes that make its graph canonical.

Both are followed by a check on the example inputs, so whatever comes out computes what the module computes.
"""

from __future__ import annotations

import contextlib

from torch import fx, nn

from fxquant.capture.canonical.added_bias import add_biases
from fxquant.capture.canonical.clean import drop_checks, sweep
from fxquant.capture.canonical.computed_weights import compute_weights
from fxquant.capture.canonical.functionalize import functionalize
from fxquant.capture.canonical.lift import lift
from fxquant.capture.exported.export import export
from fxquant.capture.exported.sizes_of_one import probe_ones
from fxquant.capture.guards import check_items, check_key, check_same, unpack
from fxquant.capture.inputs import tied_argument
from fxquant.capture.modes import ModeError, alike_without_weights, check_eval, mark_skipped
from fxquant.capture.reasons import Cause
from fxquant.capture.request import Request
from fxquant.capture.run_untraced import copy_inputs, difference, evaluating
from fxquant.capture.source_lines import reason
from fxquant.capture.symbolic.trace import trace
from fxquant.errors import CaptureError, Reason
from fxquant.graph.encode import META_KEYS
from fxquant.graph.nodes import record_tensors
from fxquant.graph.region import Region
from fxquant.graph.region_parts import Origin
from fxquant.ops.table import OpTable

_FIXING = (check_same, check_items, check_key, unpack)


def symbolic(request: Request) -> Region:
    """Make a region by a symbolic trace, or raise a CaptureError.

    The example's sizes are used only if it fails without. Modules without weights whose code depends on the mode are
    calls in it.
    """
    try:
        return _symbolic(request, concrete=False)
    except ModeError as error:
        leaves = set(alike_without_weights(request.model, error.path or "")) - set(request.leaf_names)
        if not leaves:
            raise
        return symbolic(request.with_leaves(sorted(leaves)))
    except CaptureError as error:
        if not request.has_example or error.data_dependent or request.free:
            raise
    return _symbolic(request, concrete=True)


def symbolic_root(request: Request) -> Region:
    """Do the same for the root of a model.

    A part runs its code if a call is not covered; the root has no such way out.
    """
    region = symbolic(request)
    if not request.free:
        return region
    fixed = next((node for node in region.graph.nodes if node.target in _FIXING), None)
    if fixed is not None:
        why = Reason("it depends on the number of items in a container, and nothing is to be fixed")
        raise CaptureError(f"symbolic: {why.text}.", why=why, where=str(fixed.meta.get("where", "")))
    if name := tied_argument(request.slots):
        why = Reason(f"it holds for calls that treat {name!r} as the example does, and nothing is to be fixed")
        raise CaptureError(f"symbolic: {why.text}.", why=why)
    return region


def _symbolic(request: Request, concrete: bool) -> Region:
    tree = request.clone()
    tried_again = request.has_example and not request.free and not concrete
    graph = trace(request, tree, concrete=concrete, tried_again=tried_again)
    region = _region(request, tree, graph, "symbolic")
    drop_checks(region)
    if request.has_example:
        # a run that fails leaves less to go by; the final check tells whether the graph is right
        with contextlib.suppress(Exception), evaluating(region):
            record(request, region)
    _canonicalize(region, request.ops)
    if request.has_example:
        check(request, region, "symbolic")
        if request.model.training:
            mark_skipped(region, request.ops)
    return region


def exported(request: Request) -> Region:
    """Make a region by torch.export, or raise a CaptureError."""
    if request.recording.draws:
        why = Cause.DRAWN_OUTSIDE.because()
        raise CaptureError(f"torch.export: {why.text}, which a graph would fix. What to do: {why.hint}.", why=why)
    tree = request.clone()
    program = export(request, tree)
    region = _region(request, tree, program.graph, "export")
    drop_checks(region)
    _canonicalize(region, request.ops)
    probe_ones(request.recording, region, program)
    check(request, region, "export")
    return region


def _region(request: Request, tree: nn.Module, graph: fx.Graph, method: str) -> Region:
    origin = Origin(
        user_class=type(request.model), method=method, num_inputs=request.num_inputs, input_names=request.input_names
    )
    return Region(tree, graph, origin)


def _canonicalize(region: Region, ops: OpTable) -> None:
    functionalize(region, ops)
    compute_weights(region, ops)
    add_biases(region, ops)
    lift(region, ops)
    sweep(region)


def record(request: Request, region: Region) -> object:
    """Run a region on the example inputs, and write down what is known of its tensors."""
    with request.recording.untouched(region):
        return record_tensors(region, copy_inputs(request.args), copy_inputs(request.kwargs))


def check(request: Request, region: Region, method: str) -> None:
    """Record the tensors of the final graph, and compare its outputs with the model's."""
    reference = request.recording.reference()
    try:
        with evaluating(region, reference.evaluated):
            ours = record(request, region)
    except Exception as error:
        raise CaptureError(f"{method}: the captured graph does not run: {reason(error)}") from error
    found = difference(ours, reference.outputs)
    if found:
        raise CaptureError(
            f"{method}: the captured graph computes something else than the model: {found}. "
            "The model may depend on values or on state that a graph cannot hold; mark the module that does as "
            "non-traceable, or try the other method."
        )
    if request.model.training and not reference.evaluated:
        check_eval(request.recording, region)
    for node in region.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in META_KEYS}
