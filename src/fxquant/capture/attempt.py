"""One attempt at a whole module: a symbolic trace or torch.export, then the passes that make its graph canonical.

Both are followed by a check on the example inputs, so whatever comes out computes what the module computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from fxquant.capture.bake import bake_parametrizations, is_baked
from fxquant.capture.clean import drop_checks, sweep
from fxquant.capture.compare import call, copy_inputs, difference, evaluating, untouched
from fxquant.capture.export import export
from fxquant.capture.fold_constants import fold_constants
from fxquant.capture.functionalize import functionalize
from fxquant.capture.guards import check_items, check_key, check_same, unpack
from fxquant.capture.inputs import Slot, as_call
from fxquant.capture.lift import lift
from fxquant.capture.modes import ModeError, alike_without_weights, check_eval, mark_skipped
from fxquant.capture.origin import locate, reason
from fxquant.capture.probe import probe_ones
from fxquant.capture.trace import trace
from fxquant.core.encode import META_KEYS
from fxquant.core.graph import Region, RegionState, clone_tree
from fxquant.core.nodes import record_tensors
from fxquant.core.ops import OpTable
from fxquant.errors import CaptureError

_FIXING = (check_same, check_items, check_key, unpack)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A module to capture, with its example inputs (`slots`) and the modules that a trace does not look into."""

    model: nn.Module
    slots: tuple[Slot, ...]
    has_example: bool
    leaf_names: Collection[str]
    leaf_classes: Collection[type]
    ops: OpTable
    share_tensors: bool
    free: bool = False  # no size that the example shows may be fixed

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return as_call(self.slots, {slot.name: slot.value for slot in self.slots})

    def clone(self) -> nn.Module:
        return bake_parametrizations(clone_tree(self.model, share_tensors=self.share_tensors))

    @property
    def num_inputs(self) -> int | None:
        if not self.has_example:
            return None
        return sum(isinstance(slot.key, int) and slot.given for slot in self.slots)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)


def symbolic(job: Job) -> Region:
    """The region of a symbolic trace, or a CaptureError. The example's sizes are used only if it fails without.

    Modules without weights whose code depends on the mode are calls in it.
    """
    try:
        return _symbolic(job, concrete=False)
    except ModeError as error:
        leaves = set(alike_without_weights(job.model, error.path or "")) - set(job.leaf_names)
        if not leaves:
            raise
        return symbolic(replace(job, leaf_names=(*job.leaf_names, *sorted(leaves))))
    except CaptureError as error:
        if not job.has_example or error.data_dependent or job.free:
            raise
    return _symbolic(job, concrete=True)


def symbolic_root(job: Job) -> Region:
    """The same for the root of a model. A part runs its code if a call is not covered; the root has no such way out."""
    region = symbolic(job)
    fixed = [node for node in region.graph.nodes if node.target in _FIXING] if job.free else []
    if fixed:
        why = "it depends on the number of items in a container, and nothing is to be fixed"
        raise CaptureError(f"symbolic: {why}.", reason=why, where=str(fixed[0].meta.get("where", "")))
    return region


def _symbolic(job: Job, concrete: bool) -> Region:
    tree = job.clone()
    tried_again = job.has_example and not job.free and not concrete
    graph = trace(tree, job.slots, job.leaf_names, job.leaf_classes, concrete, tried_again)
    region = _region(job, tree, graph, "symbolic")
    drop_checks(region)
    if job.has_example:
        # a run that fails leaves less to go by; the final check tells whether the graph is right
        with contextlib.suppress(Exception), evaluating(region):
            record(region, *job.call())
    _canonicalize(region, job.ops)
    if job.has_example:
        check(job, region, *job.call())
        if job.model.training:
            mark_skipped(region, job.ops)
    return region


def exported(job: Job) -> Region:
    """The region of a torch.export, or a CaptureError."""
    tree = job.clone()
    program = export(tree, job.slots)
    region = _region(job, tree, program.graph, "export")
    drop_checks(region)
    _canonicalize(region, job.ops)
    probe_ones(job.model, region, program, *job.call())
    check(job, region, *job.call())
    return region


def _region(job: Job, tree: nn.Module, graph: fx.Graph, method: str) -> Region:
    state = RegionState(
        user_class=type(job.model), method=method, num_inputs=job.num_inputs, input_names=job.input_names
    )
    return Region(tree, graph, state)


def _canonicalize(region: Region, ops: OpTable) -> None:
    functionalize(region, ops)
    fold_constants(region, ops)
    lift(region, ops)
    sweep(region)


def record(region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with untouched(region):
        return record_tensors(region, copy_inputs(args), copy_inputs(kwargs))


def check(job: Job, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record the tensors of the final graph, and compare its outputs with the model's."""
    # in train mode a spectral norm changes its weight with every run, so compare with the baked one
    reference = job.clone() if is_baked(job.model) and job.model.training else clone_tree(job.model)
    try:
        theirs, evaluated = _reference_outputs(region, reference, args, kwargs)
    except CaptureError:
        raise
    except Exception as error:
        where, _ = locate(error, reference)
        raise CaptureError(
            f"the model itself fails on the example inputs: {reason(error)} At {where}. Pass others."
        ) from error
    try:
        with evaluating(region, evaluated):
            ours = record(region, args, kwargs)
    except Exception as error:
        raise CaptureError(f"{region._region.method}: the captured graph does not run: {reason(error)}") from error
    found = difference(ours, theirs)
    if found:
        raise CaptureError(
            f"{region._region.method}: the captured graph computes something else than the model: {found}. "
            "The model may depend on values or on state that a graph cannot hold; mark the module that does as "
            "non-traceable, or try the other method."
        )
    if job.model.training and not evaluated:
        check_eval(reference, region, args, kwargs)
    for node in region.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in META_KEYS}


def _reference_outputs(
    region: Region, reference: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, bool]:
    """The outputs of the model itself, and whether they are of its eval mode; its calls have to be independent."""
    evaluated = False
    with untouched(reference) as before:
        try:
            theirs = call(reference, args, kwargs)
        except Exception:
            # a batch of one cannot go through batch norm in train mode, yet is a fair example
            evaluated = any(module.training for module in reference.modules())
            if not evaluated:
                raise
            before.restore()
            reference.eval()
            theirs = call(reference, args, kwargs)
        kept = before.changed()
        if kept:
            before.restore_buffers()  # a graph can hold these
            torch.manual_seed(0)
            if found := difference(call(reference, args, kwargs), theirs):
                path, names = next(iter(kept.items()))
                why = f"a call changes the attribute {names[0]!r} and the next call depends on it: {found}"
                raise CaptureError(f"{region._region.method}: {why}. A graph cannot hold that.", reason=why, path=path)
    return theirs, evaluated
