"""The regions of a model in another runtime.

They stay where they are, lowered to oneDNN, and hand the calls that are like their example's to the runtime. So a model
of several regions runs there too, attributes and state_dict stay, and calls with other sizes have an engine.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.capture.symbolic.trace import run_forward
from fxquant.engines import layout
from fxquant.engines.agreement import check_agreement, compare_results, nudge
from fxquant.engines.example import example_of
from fxquant.engines.made_from import MadeFrom, made_from
from fxquant.engines.onednn.lower import lower
from fxquant.engines.onednn.runner import OneDnn
from fxquant.engines.runtimes.runtime import AnyRuntime, OutOfBounds
from fxquant.errors import ConfigError, FxQuantError
from fxquant.export.reference import reference_of
from fxquant.graph import torch_compat
from fxquant.graph.context import Context
from fxquant.graph.lowering import Runner, has_forward
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.notes import WRAPPED
from fxquant.graph.paths import is_within
from fxquant.graph.region import Region, lowering_of, origin_of, region_name, regions, set_origin
from fxquant.graph.run_passes import run_passes
from fxquant.ops.table import OPS

_CHANGED = "while it is not as it was converted, or has hooks"
log = logging.getLogger("fxquant")

Key = tuple[tuple[torch.Size, tuple[int, ...]], ...]  # shapes and strides of the inputs of a call

_MOST_LAYOUTS = 64
_OTHERWISE: tuple[tuple[int, ...], ...] = ((-1,),)  # a layout of inputs that the runtime does not know


class RegionRunner(Runner):
    """Runs a region in a runtime, where a call is like the example's; the lowered graph takes the others."""

    def __init__(self, kind: type[AnyRuntime], runtime: AnyRuntime | None, region: Region, *, alone: bool) -> None:
        self.kind = kind
        self.runtime = runtime  # None if it is made at the next call
        self.alone = alone
        lowered = lowering_of(region).runner
        assert isinstance(lowered, OneDnn)
        self.lowered = lowered
        self.made_from: MadeFrom = made_from(region)
        self.digest: int | None = None  # of what this is a copy of, until a first call, maybe in several threads
        self.failed = ""  # why the runtime is not asked again
        self.told: set[str] = set()
        self.layouts: dict[Key, tuple[tuple[int, ...], ...] | None] = {}  # of the results, by those of the inputs

    @property
    def engine(self) -> str:
        return "onednn" if self.failed else self.kind.engine

    def renew(self) -> None:
        """The region has other tensors: its runtime is made again from them."""
        self.lowered.renew()
        self.runtime, self.digest, self.failed = None, None, ""
        self.layouts.clear()

    def _make(self, region: Region) -> None:
        self.made_from, self.digest = made_from(region), None
        try:
            if code := _own_code(region):
                raise FxQuantError(f"It calls {code}, which is Python.")
            self.runtime = _make_runtime(region, self.kind, alone=self.alone)
        except FxQuantError as error:
            self.failed = str(error)
            self._tell(region, "from now on", self.failed)

    def __call__(self, region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if has_forward(region):
            return self._pass_on("with a forward of its own", region, args, kwargs)
        if self.runtime is None and not self.failed and torch_compat.plain_mode():
            self._make(region)
        if (digest := self.digest) is not None:  # writes through tensor.data are not counted
            self.failed = self.failed or ("" if self.made_from.digest() == digest else _CHANGED)
            self.digest = None
        if self.failed:
            return self.lowered(region, args, kwargs)
        if self.runtime is None or not torch_compat.plain_mode():
            return self._pass_on("under tracing, torch.func or a mode of torch", region, args, kwargs)
        if self.lowered.hooks.listen(region) or not self.made_from.holds():
            return self._pass_on(_CHANGED, region, args, kwargs)
        try:
            tensors = self.runtime.signature.flatten(args, kwargs)
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tensors, *self.made_from.tensors)):
                return self._pass_on("where gradients are asked for: use torch.no_grad()", region, args, kwargs)
            reason = self.runtime.refuses(tensors)
            if reason is None:
                key = tuple((tensor.shape, tensor.stride()) for tensor in tensors)
                if self.layouts.get(key) is not _OTHERWISE:
                    result = self.runtime.run(tensors)
                    strides = self._strides(region, args, kwargs, key, result)
                    if strides is not _OTHERWISE:
                        return _laid(result, strides)
                reason = "It computes something else from tensors that lie so in memory."
        except ConfigError as error:
            return self._pass_on("with other arguments than in the example", region, args, kwargs, str(error))
        except OutOfBounds as error:
            reason = str(error)  # what oneDNN raises is not raised because of it
        except FxQuantError as error:
            answer = self.lowered(region, args, kwargs)  # raises if it is the call that is wrong
            self.failed = str(error)
            self._tell(region, "from now on", self.failed)
            return answer
        return self._pass_on("for other inputs than the example's", region, args, kwargs, reason)

    def _strides(
        self, region: Region, args: tuple[object, ...], kwargs: dict[str, object], key: Key, result: object
    ) -> tuple[tuple[int, ...], ...] | None:
        """Return the layouts that Python gives the results; None if they are the runtime's.

        They are seen once for each layout of inputs.
        Runtimes know one layout of inputs. What the graph reads from others, if it looks at strides, is not theirs.
        """
        if key not in self.layouts:
            if len(self.layouts) >= _MOST_LAYOUTS:
                self.layouts.clear()
            with torch.no_grad():
                expected = region.run_graph(args, kwargs)
            self.layouts[key] = _compare_layouts(expected, result)
            if any(strides != layout.contiguous_strides(shape) for shape, strides in key):
                nudged = functools.partial(_run_nudged, region, args, kwargs)
                if not _agree(expected, result, nudged, self.kind.engine):
                    self.layouts[key] = _OTHERWISE
        return self.layouts[key]

    def _pass_on(
        self, when: str, region: Region, args: tuple[object, ...], kwargs: dict[str, object], why: str = ""
    ) -> object:
        if when not in self.told:
            self._tell(region, when, why)
        return self.lowered(region, args, kwargs)

    def _tell(self, region: Region, when: str, why: str) -> None:
        self.told.add(when)
        log.warning("%r runs on onednn, not %s, %s. %s", region_name(region), self.kind.engine, when, why)

    def copied(self, region: Region) -> None:
        if "made_from" not in self.__dict__:  # copy.copy shares runners
            self.made_from = made_from(region)

    def __getstate__(self) -> dict[str, object]:
        as_made = self.runtime is None or (self.failed != _CHANGED and self.made_from.holds())
        digest = self.digest
        if digest is None and as_made and self.runtime is not None:
            digest = self.made_from.digest()
        state = {**self.__dict__, "digest": digest, "failed": "" if as_made else _CHANGED, "told": set()}
        del state["made_from"]  # of this region's tensors; see `copied`
        return state


def _compare_layouts(expected: object, found: object) -> tuple[tuple[int, ...], ...] | None:
    pairs = list(zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True))
    if not any(isinstance(a, Tensor) and a.stride() != b.stride() for a, b in pairs):
        return None
    return tuple(a.stride() if isinstance(a, Tensor) else () for a, _ in pairs)


def _run_nudged(region: Region, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    with torch.no_grad():
        return region.run_graph(*nudge((args, kwargs)))


def _agree(expected: object, found: object, nudged: Callable[[], object], engine: str) -> bool:
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True)
    if any(not isinstance(a, Tensor) and a != b for a, b in pairs):
        return False
    try:
        compare_results(expected, found, nudged, engine)
    except FxQuantError:
        return False
    return True


def _laid(result: object, strides: tuple[tuple[int, ...], ...] | None) -> object:
    if strides is None:
        return result
    leaves, spec = pytree.tree_flatten(result)
    laid = [layout.restored(x, at) if isinstance(x, Tensor) else x for x, at in zip(leaves, strides, strict=True)]
    return pytree.tree_unflatten(laid, spec)


def outermost(model: nn.Module) -> Iterator[tuple[str, Region]]:
    """Yield the regions that are in no other one, with their paths."""
    last = None
    for path, region in regions(model):
        if last is None or not is_within(path, last):
            last = path
            yield path, region


def run_regions(model: nn.Module, kind: type[AnyRuntime]) -> nn.Module:
    """Lower a converted model, in place, and give its regions runtimes. A warning tells where none could be.

    A region of one product stays with oneDNN if there are larger ones: a runtime gains nothing on it.
    """
    runtimes: dict[str, AnyRuntime | None] = {}
    failed: dict[str, FxQuantError] = {}
    found = dict(outermost(model))
    large = {path: region for path, region in found.items() if _count_products(region) > 1}
    chosen = large or found
    own = {path: code for path, region in chosen.items() if (code := _own_code(region))}
    for path, region in chosen.items():
        if path in own:
            continue
        try:
            waits = lowering_of(region).waiting
            runtimes[path] = None if waits else _make_runtime(region, kind, alone=len(chosen) == 1)
        except FxQuantError as error:
            failed[path] = error
    if failed and not runtimes:
        raise next(iter(failed.values()))
    reasons = {path: f"It calls {code}, which is Python." for path, code in own.items()}
    for path, reason in {**failed, **reasons}.items():
        what = f"module {path!r}" if path else "the model"
        warnings.warn(f"{what} runs on onednn, not {kind.engine}. {reason}", stacklevel=4)
    small = "a runtime gains nothing on one product"
    reasons.update({path: f"{small}." for path in found if path not in chosen})
    run_passes(model, (lower,), Context())
    for path, reason in {**failed, **reasons}.items():
        lowering_of(found[path]).runner = OneDnn(f"{kind.engine} does not run it. {reason}")
    for path, runtime in runtimes.items():
        lowering_of(found[path]).runner = RegionRunner(kind, runtime, found[path], alone=len(chosen) == 1)
    return model


def _own_code(region: Region) -> str:
    """Return what the graph calls of the user's own code, if anything: no runtime can take that."""
    for node in region.graph.nodes:
        if node.op == "call_module":
            for module in region.get_submodule(str(node.target)).modules():
                known = type(module).__module__.partition(".")[0] in ("torch", "fxquant")
                if not known or ("forward" in module.__dict__ and not isinstance(module, Region)):
                    return f"module {str(node.target)!r} ({type(module).__name__})"
        elif node.op == "call_function" and (hasattr(node.target, WRAPPED) or node.target is run_forward):
            return f"wrapped function {getattr(node.target, '__name__', 'forward')!r}"
    return ""


def _count_products(region: Region) -> int:
    ops = (OPS.of_node(node, region) for node in region.graph.nodes)
    return sum(op is not None and op.is_product for op in ops)


def _make_runtime(region: Region, kind: type[AnyRuntime], *, alone: bool) -> AnyRuntime:
    """Return a region's QDQ graph in a runtime that was seen to compute the same."""
    region = _by_itself(region)
    if _gives_complex(region):
        raise ConfigError(
            f"engine={kind.engine!r}: the model gives complex tensors, which ONNX lacks. Use engine='onednn'."
        )
    example = example_of(region)
    try:
        runtime = kind(region, (), example_kwargs=example, alone=alone)
        check_agreement(runtime, region, example, kind.engine)
    except FxQuantError:
        raise
    except Exception as error:  # exporters and runtimes have many of their own
        raise FxQuantError(f"engine={kind.engine!r} cannot take this graph. {type(error).__name__}: {error}") from error
    return runtime


def _gives_complex(region: Region) -> bool:
    given = next(node for node in region.graph.nodes if node.op == "output").all_input_nodes
    infos = (node.meta.get("tensor") for node in given)
    return any(isinstance(info, TensorInfo) and info.dtype.is_complex for info in infos)


def _by_itself(region: Region) -> Region:
    """Return a copy that does not run its code in float where the graph does not cover a call."""
    alone = reference_of(region, "a runtime")
    assert isinstance(alone, Region)
    set_origin(alone, replace(origin_of(alone), path=""))
    return alone
