"""A graph in which the few modules that do not trace are calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fxquant.capture.attempt import symbolic, symbolic_root
from fxquant.capture.request import Request
from fxquant.errors import CaptureError
from fxquant.graph.region import Region
from fxquant.graph.tree import weighted_parts

FEW, HALF = 0.1, 0.5  # the share of the weighted ops that may be in opaque modules: of the model, of a part of it
_MOST_LEAVES = 8  # modules that one region may leave opaque before it is given up


@dataclass(frozen=True, slots=True)
class Traced:
    """A region, and the modules that stayed calls in it, each with the reason."""

    region: Region
    opaque: Mapping[str, CaptureError]


def trace_most(request: Request, *, root: bool) -> Traced:
    """Trace a module; where parts of it do not trace, leave them as calls. `root` is False for a part of the model."""
    try:
        return Traced((symbolic_root if root else symbolic)(request), {})
    except CaptureError as error:
        return trace_around(request, error, root=root)


def trace_around(request: Request, first: CaptureError, *, root: bool) -> Traced:
    """Trace a module of which a trace failed, with calls of what fails; raise `first` if that does not work."""
    most_parts = FEW if root else HALF
    whole = len(weighted_parts(request.model, request.ops))
    opaque: dict[str, CaptureError] = {}
    error = first
    while error.path and len(opaque) < _MOST_LEAVES and error.path not in opaque:
        failing = request.model.get_submodule(error.path)
        if isinstance(failing, Region):
            break
        same = [path for path, module in request.model.named_modules() if type(module) is type(failing)]
        opaque.update(dict.fromkeys((error.path, *same), error))
        if sum(len(weighted_parts(request.model.get_submodule(p), request.ops)) for p in opaque) > most_parts * whole:
            break
        try:
            region = (symbolic_root if root else symbolic)(request.with_leaves([*opaque]))
        except CaptureError as again:
            error = again
        else:
            called = {str(node.target) for node in region.graph.nodes if node.op == "call_module"}
            return Traced(region, {path: why for path, why in opaque.items() if path in called})
    raise first
