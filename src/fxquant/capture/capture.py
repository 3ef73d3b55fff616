"""`capture`: an `nn.Module` and example inputs in, a canonical `Region`, or the user's module with regions inside, out.

The ladder of method="auto", from the most general result to the least:

    symbolic     a trace of the whole; where code asks for a size or a dtype, the example's, and a check at run time
    opaque       the same, with calls in place of the few modules that fail (regions inside those, if they have weights)
    export       torch.export of the whole; sizes that it fixes are checked at run time
    piecewise    the largest traceable submodules are regions, the Python around them runs as written
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal, get_args

from torch import nn

from fxquant.capture.attempt import exported, symbolic_root
from fxquant.capture.batch import batch_size, fixes_batch, fixes_inputs
from fxquant.capture.guards import check_fixed, check_given, check_items, check_key, check_same, unpack
from fxquant.capture.inputs import bind, bind_defaults
from fxquant.capture.piecewise.opaque import Traced, trace_around
from fxquant.capture.piecewise.piecewise import piecewise
from fxquant.capture.reasons import Cause
from fxquant.capture.recording import Recording, Reference
from fxquant.capture.request import Request, make_request
from fxquant.capture.run_untraced import copy_inputs, untouched
from fxquant.errors import CaptureError
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.nodes import record_tensors
from fxquant.graph.one_at_a_time import CAPTURING
from fxquant.graph.region import Region, regions
from fxquant.graph.tree import set_tree, tree_of
from fxquant.ops.table import OPS, OpTable

Method = Literal["auto", "symbolic", "export", "piecewise"]
Sizes = Literal["example", "any"]

log = logging.getLogger("fxquant")

_CHECKS = {check_fixed, check_given, check_items, check_key, check_same, unpack}


def capture(
    model: nn.Module,
    args: tuple[object, ...] | None,
    kwargs: Mapping[str, object] | None = None,
    *,
    method: Method = "auto",
    sizes: Sizes = "example",
    leaf_names: Collection[str] = (),
    leaf_classes: Collection[type] = (),
    ops: OpTable = OPS,
    part: str = "",
    concrete: Mapping[str, object] | None = None,
    reference: Reference | None = None,
) -> nn.Module:
    """Turn a model into one with regions that computes the same and shares its tensors; the model is not changed.

    `args` and `kwargs` are example inputs; without them (`args=None`) only method="symbolic" works, and nothing is
    known of the tensors. `sizes="any"` fixes no size of the example, and neither does method="piecewise". `leaf_names`
    and `leaf_classes` are modules that a symbolic trace does not look into. `part` is the path of a model that is part
    of another. `concrete` are values of plain arguments: they are fixed, and what a graph takes for arguments that a
    call leaves out. `reference` is what the model computes from the example, where a run has shown that.
    """
    has_example = args is not None or bool(kwargs)
    leaves = (*map(repr, leaf_names), *(cls.__name__ for cls in leaf_classes))
    _check(model, method, sizes, has_example=has_example, leaves=leaves)
    if isinstance(model, Region):
        return _recapture(model, args, kwargs or {})
    request = make_request(
        model,
        bind(model, args or (), kwargs or {}, concrete or {}) if has_example else bind_defaults(model),
        has_example=has_example,
        leaf_names=leaf_names,
        leaf_classes=leaf_classes,
        ops=ops,
        free=sizes == "any" or method == "piecewise",
        reference=reference,
    )
    attempts: dict[str, Callable[[Request], nn.Module]] = {
        "auto": lambda request: _climb(request, part),
        "symbolic": symbolic_root,
        "export": exported,
        "piecewise": piecewise,
    }
    with CAPTURING:
        captured = attempts[method](request)
    if concrete and not isinstance(captured, Region):
        set_tree(captured, replace(tree_of(captured), concrete=tuple(concrete.items())))
    return captured


def _check(model: nn.Module, method: str, sizes: str, *, has_example: bool, leaves: tuple[str, ...]) -> None:
    """Raise where what is asked for does not go together."""
    if method not in get_args(Method):
        raise CaptureError(f"method {method!r} is unknown. Use {', '.join(map(repr, get_args(Method)))}.")
    if sizes not in get_args(Sizes):
        raise CaptureError(f"sizes {sizes!r} is unknown. Use {', '.join(map(repr, get_args(Sizes)))}.")
    if sizes == "any" and method == "export":
        raise CaptureError("method='export' fixes sizes, so it does not go with sizes='any'. Use method='auto'.")
    if not has_example and method in ("export", "piecewise"):
        raise CaptureError(f"method={method!r} needs example inputs. Pass them, or use method='symbolic'.")
    if method == "export" and leaves:
        raise CaptureError(
            f"method='export' looks into every module, so {', '.join(leaves)} cannot stay one call. Use "
            "method='auto', or leave it out of the custom config and give it None in the qconfig mapping."
        )
    if method == "export" and not isinstance(model, Region) and (parts := [path for path, _ in regions(model)]):
        raise CaptureError(
            f"method='export' would take {parts[0]!r} apart, which is standalone or already quantized. "
            "Use method='auto'."
        )


def _climb(request: Request, part: str) -> nn.Module:
    """Take the first rung that holds; one that holds for any batch size before one that does not."""
    try:
        region = symbolic_root(request)
    except CaptureError as error:
        first = error
    else:
        return region if request.free else _for_any_batch(request, region, part)
    if not request.has_example:
        raise first
    _announce(part, "failed", first.where, first.reason)
    whole: Traced | CaptureError = first
    with contextlib.suppress(CaptureError):
        whole = trace_around(request, first, root=True)
    if not (request.free or first.data_dependent or isinstance(whole, Traced)) and _can_export(request):
        try:
            return exported(request)
        except CaptureError as error:
            log.debug("torch.export fails too: %s", error)
    return piecewise(request, whole)


def _for_any_batch(request: Request, region: Region, part: str) -> nn.Module:
    """Take the region, or what holds for other calls too (a larger batch, no labels in eval mode), if it does not."""
    fixes = _fixing(request, region)
    if fixes is None:
        return region
    check = next((node for node in region.graph.nodes if node.target in _CHECKS), None)
    size = batch_size((request.args, request.kwargs))
    where = str(check.meta.get("where", "")) if check is not None else ""
    limit = f"holds for a batch of {size} only" if fixes is fixes_batch else "needs all of the example inputs"
    why = (Cause.ONE_BATCH if fixes is fixes_batch else Cause.ALL_INPUTS).because(limit=limit)
    refused = CaptureError(why.text, why=why, where=where)
    attempts: list[Callable[[], nn.Module]] = [lambda: piecewise(request, refused)]
    if _can_export(request) and fixes is fixes_batch:
        attempts.insert(0, lambda: exported(request))
    for attempt in attempts:
        with contextlib.suppress(CaptureError):
            captured = attempt()
            if not fixes(request.recording, captured):
                _announce(part, limit, where, "its code depends on a size" if fixes is fixes_batch else "")
                return captured
    return region


def _fixing(request: Request, region: Region) -> Callable[[Recording, nn.Module], bool] | None:
    """Tell how the region is tied to the example more than the model is, if it is."""
    checks = {node.target for node in region.graph.nodes} & _CHECKS
    if checks & {check_same, check_items, unpack} and fixes_batch(request.recording, region):
        return fixes_batch
    if request.model.training and checks and fixes_inputs(request.recording, region):
        return fixes_inputs
    return None


def _can_export(request: Request) -> bool:
    """Export has no leaves, so it would ignore what the user asked for, and take regions apart."""
    return not request.leaf_names and not request.leaf_classes and not any(regions(request.model))


def _announce(part: str, what: str, where: str, why: str) -> None:
    log.log(
        logging.DEBUG if part else logging.INFO,
        "FX trace of %s %s. Quantizing its traceable parts. (%s: %s)",
        f"{part!r}" if part else "the entire model",
        what,
        where or "unknown place",
        why,
    )


def _recapture(region: Region, args: tuple[object, ...] | None, kwargs: Mapping[str, object]) -> Region:
    again = clone_tree(region)
    assert isinstance(again, Region)
    if args is not None or kwargs:
        with untouched(again):
            record_tensors(again, copy_inputs(args or ()), copy_inputs(dict(kwargs)))
    return again
