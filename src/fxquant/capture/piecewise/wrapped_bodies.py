"""Modules that are called inside wrapped bodies, and others that have to be captured by themselves.

The tracer takes a Region for a leaf, so what becomes a region here, before the model around it is captured, is one
`call_module` there. `watch_calls` runs the model once to see with what its modules are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fxquant.capture.piecewise.calls import Call, hookable
from fxquant.capture.piecewise.stock_region import is_weighted_leaf, leaf_region
from fxquant.capture.recording import Reference
from fxquant.capture.run_untraced import call, copy_inputs, evaluating, untouched
from fxquant.capture.symbolic.wrap import has_wrapped_method, intercepting, is_wrapped
from fxquant.capture.untouched.other_random import has_drawn, random_state
from fxquant.capture.untouched.written import Written
from fxquant.errors import CaptureError
from fxquant.graph.region import Region
from fxquant.graph.tree import weighted_parts
from fxquant.ops.table import OPS

# (module, args, kwargs) -> the captured module
Capture = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], nn.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstCall:
    """A module's first call, and how many wrapped bodies were around it; 0 is outside of all."""

    call: Call
    depth: int


@dataclass(kw_only=True, slots=True)
class CalledModules:
    """The modules that a run called; of those that are wanted or inside wrapped bodies, the first call of each.

    `outputs` are those of the last run, in eval mode, if none failed. `reference` is what a graph of the tree can be
    compared with, if the run left all as it was.
    """

    wanted: Callable[[nn.Module], bool]
    seen: dict[nn.Module, FirstCall] = field(default_factory=dict)
    called: set[nn.Module] = field(default_factory=set)
    depth: int = 0
    failed: bool = False
    outputs: object = None
    reference: Reference | None = None

    def intercept(self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        body: Callable[..., Any] = vars(function)["__wrapped__"]
        self.depth += 1
        try:
            return body(*args, **kwargs)
        finally:
            self.depth -= 1

    def before(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.called.add(module)
        known = self.seen.get(module)
        if (self.depth or self.wanted(module)) and (known is None or known.depth < self.depth):
            self.seen[module] = FirstCall(call=Call(copy_inputs(args), copy_inputs(kwargs)), depth=self.depth)
        self.depth += is_wrapped(module)

    def after(self, module: nn.Module, *_: object) -> None:
        self.depth -= is_wrapped(module)


def watch_calls(
    tree: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], wanted: Callable[[nn.Module], bool]
) -> CalledModules:
    """Run the model: the first calls of the modules that are wanted, and of all that wrapped bodies call, in order.

    The tree is a clone: hooks are put on it and taken off again. A model in train mode is run in both modes. A run
    that fails is left to the capture that follows, which has a message for it. Parameters that the run writes to are
    the tree's own afterwards.
    """
    watch, written = CalledModules(wanted=wanted), Written(tree)
    handles = []
    for _, module in hookable(tree):
        handles.append(module.register_forward_pre_hook(watch.before, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(watch.after, always_call=True))
    try:
        modes = (False, True) if tree.training else (False,)
        for evaluated in modes:
            watch.failed = True
            with contextlib.suppress(Exception), untouched(tree) as before, evaluating(tree, evaluated):
                watch.depth = 0
                generators = random_state()
                with intercepting(tree, watch.intercept), written:
                    watch.outputs = call(tree, args, kwargs)
                watch.failed = False
                if len(modes) == 1 and not (before.changed() or before.changed_outside()):
                    watch.reference = Reference(watch.outputs, evaluated=False, drew=has_drawn(generators))
    finally:
        for handle in handles:
            handle.remove()
        written.separate()
    return watch


def replace_module(tree: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in place of another, wherever the tree holds it."""
    for parent in list(tree.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new


def capture_bodies(
    tree: nn.Module, watch: CalledModules, allowed: Callable[[nn.Module], bool], capture: Capture
) -> None:
    """Make regions of the largest traceable modules that are called inside wrapped bodies.

    Bodies inside bodies come first, so that a region never swallows another's parts. What does not trace is left as
    it is, and its own parts are tried in turn. Stock modules that the run did not reach are regions of one op.
    """
    inside = [(module, seen) for module, seen in watch.seen.items() if seen.depth]
    idle = [module for module in _under_bodies(tree) if module not in watch.called and allowed(module)]
    done: dict[int, set[nn.Module]] = {}
    for module, seen in sorted(inside, key=lambda item: -item[1].depth):
        covered = done.setdefault(seen.depth, set())
        if module in covered or isinstance(module, Region) or is_wrapped(module) or not allowed(module):
            continue
        if not weighted_parts(module):
            continue
        with contextlib.suppress(CaptureError):
            region = capture_alone(module, seen.call, capture)
            covered.update(module.modules())
            replace_module(tree, module, region)
    for module in idle:
        with contextlib.suppress(CaptureError):
            replace_module(tree, module, leaf_region(module, [], OPS))


def _under_bodies(module: nn.Module, inside: bool = False) -> Iterator[nn.Module]:
    """Find the weighted ops inside modules that are wrapped, or that have a wrapped method."""
    if isinstance(module, Region):
        return
    if inside and is_weighted_leaf(module, OPS):
        yield module
    inside = inside or bool(module._modules and (is_wrapped(module) or has_wrapped_method(module)))
    for child in module.children():
        yield from _under_bodies(child, inside)


def capture_alone(module: nn.Module, how: Call, capture: Capture) -> nn.Module:
    """Return the module as a region; a stock op becomes a region of that one op."""
    if is_weighted_leaf(module, OPS):
        return leaf_region(module, [how], OPS)
    return capture(module, how.args, how.kwargs)
