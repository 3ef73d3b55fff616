"""`capture`: an `nn.Module` and example inputs in, a canonical `Region` out.

Both ways in (trace.py, export.py) are followed by the same passes and by a check on the example inputs, so whatever
comes out computes what the model computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import fx, nn

from fxquant.capture.bake import bake_parametrizations, is_baked
from fxquant.capture.clean import drop_checks, sweep
from fxquant.capture.compare import copy_inputs, difference, evaluating, run, untouched
from fxquant.capture.export import export
from fxquant.capture.functionalize import functionalize
from fxquant.capture.inputs import Slot, as_call, bind, bind_defaults
from fxquant.capture.lift import lift
from fxquant.capture.origin import locate, reason
from fxquant.capture.probe import probe_ones
from fxquant.capture.trace import trace
from fxquant.core.graph import META_KEYS, Region, RegionState, clone_tree, record_tensors
from fxquant.core.ops import OPS, OpTable
from fxquant.errors import CaptureError

Method = Literal["auto", "symbolic", "export"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    model: nn.Module
    slots: tuple[Slot, ...]
    has_example: bool
    leaf_names: Collection[str]
    leaf_classes: Collection[type]
    ops: OpTable
    share_tensors: bool

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return as_call(self.slots, {slot.name: slot.value for slot in self.slots})

    def clone(self) -> nn.Module:
        return bake_parametrizations(clone_tree(self.model, share_tensors=self.share_tensors))


def capture(
    model: nn.Module,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    method: Method = "auto",
    leaf_names: Collection[str] = (),
    leaf_classes: Collection[type] = (),
    ops: OpTable = OPS,
    share_tensors: bool = True,
) -> Region:
    """Turn a model into a region that computes the same and shares its tensors; the model itself is not changed.

    `args` and `kwargs` are example inputs; without them (`args=None`) only method="symbolic" works, and nothing is
    known of the tensors. `leaf_names` and `leaf_classes` are modules that a symbolic trace does not look into.
    """
    if method not in ("auto", "symbolic", "export"):
        raise CaptureError(f"method {method!r} is unknown. Use 'auto', 'symbolic' or 'export'.")
    has_example = args is not None or bool(kwargs)
    if not has_example and method == "export":
        raise CaptureError("torch.export needs example inputs. Pass them, or use method='symbolic'.")
    if isinstance(model, Region):
        return _recapture(model, args, kwargs or {}, share_tensors)
    slots = bind(model, args or (), kwargs or {}) if has_example else bind_defaults(model)
    job = _Job(
        model=model,
        slots=slots,
        has_example=has_example,
        leaf_names=leaf_names,
        leaf_classes=leaf_classes,
        ops=ops,
        share_tensors=share_tensors,
    )
    attempts: dict[str, Callable[[_Job], Region]] = {"symbolic": _symbolic, "export": _export}
    if method != "auto":
        return attempts[method](job)
    try:
        return _symbolic(job)
    except CaptureError as first:
        if not has_example or leaf_names or leaf_classes:
            raise  # export has no leaves, so it would ignore what the user asked for
        try:
            return _export(job)
        except CaptureError as second:
            raise CaptureError(
                f"neither way of capturing {type(model).__name__} works.\n  {first}\n  {second}"
            ) from second


def _recapture(region: Region, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any], share_tensors: bool) -> Region:
    again = clone_tree(region, share_tensors=share_tensors)
    assert isinstance(again, Region)
    if args is not None or kwargs:
        _record(again, args or (), dict(kwargs))
    return again


def _symbolic(job: _Job) -> Region:
    tree = job.clone()
    graph = trace(tree, job.slots, job.leaf_names, job.leaf_classes)
    region = _region(job, tree, graph, "symbolic")
    drop_checks(region)
    if job.has_example:
        # a run that fails leaves less to go by; the final check tells whether the graph is right
        with contextlib.suppress(Exception), evaluating(region):
            _record(region, *job.call())
    _canonicalize(region, job.ops)
    if job.has_example:
        _check(job, region, *job.call())
    return region


def _export(job: _Job) -> Region:
    tree = job.clone()
    exported = export(tree, job.slots)
    region = _region(job, tree, exported.graph, "export")
    drop_checks(region)
    _canonicalize(region, job.ops)
    probe_ones(job.model, region, exported, *job.call())
    _check(job, region, *job.call())
    return region


def _region(job: _Job, tree: nn.Module, graph: fx.Graph, method: str) -> Region:
    names = tuple(slot.name for slot in job.slots)
    count = sum(isinstance(slot.key, int) and slot.given for slot in job.slots) if job.has_example else None
    state = RegionState(user_class=type(job.model), method=method, num_inputs=count, input_names=names)
    return Region(tree, graph, state)


def _canonicalize(region: Region, ops: OpTable) -> None:
    functionalize(region, ops)
    lift(region, ops)
    sweep(region)


def _record(region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with untouched(region):
        return record_tensors(region, copy_inputs(args), copy_inputs(kwargs))


def _check(job: _Job, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record the tensors of the final graph, and compare its outputs with the model's."""
    # in train mode a spectral norm changes its weight with every run, so compare with the baked one
    reference = job.clone() if is_baked(job.model) and job.model.training else clone_tree(job.model)
    evaluated = False
    try:
        try:
            theirs = run(reference, args, kwargs)
        except Exception:
            # a batch of one cannot go through batch norm in train mode, yet is a fair example
            evaluated = any(module.training for module in reference.modules())
            if not evaluated:
                raise
            theirs = run(reference.eval(), args, kwargs)
    except Exception as error:
        where, _ = locate(error, reference)
        raise CaptureError(
            f"the model itself fails on the example inputs: {reason(error)} At {where}. Pass others."
        ) from error
    try:
        with evaluating(region, evaluated):
            ours = _record(region, args, kwargs)
    except Exception as error:
        raise CaptureError(f"{region._region.method}: the captured graph does not run: {reason(error)}") from error
    found = difference(ours, theirs)
    if found:
        raise CaptureError(
            f"{region._region.method}: the captured graph computes something else than the model: {found}. "
            "The model may depend on values or on state that a graph cannot hold; mark the module that does as "
            "non-traceable, or try the other method."
        )
    for node in region.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in META_KEYS}
