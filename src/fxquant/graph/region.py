"""Regions: graph modules that keep the user's module tree, attributes and methods.

A `Region` is an `fx.GraphModule` whose submodules are the user's own tree (a clone that shares its tensors), so paths,
state_dict keys, plain attributes and methods stay as they were. Unlike a plain GraphModule it keeps `node.meta` through
deepcopy and pickling, since the graph is stored as rows (`encode_graph`), not as code to be traced again.

`node.meta` holds plain values only:
    scope   ((path, "package.Class"), ...) of the enclosing modules, outermost first
    where   "file.py:12" in the user's code, or ""
    tensor  TensorInfo, a tuple of them for a node that returns several, or None for anything else
    mutated True if the tensor may be changed in place after it is made (see capture/canonical/functionalize.py)
    note, decision   see graph/notes.py
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx, nn
from torch.fx.graph import PythonCode

from fxquant.errors import InputError, StageError
from fxquant.graph import torch_compat
from fxquant.graph.as_written import as_written
from fxquant.graph.call_lowered import call_lowered
from fxquant.graph.container import lend_methods
from fxquant.graph.encode import EncodedGraph, decode_graph, encode_graph
from fxquant.graph.explain_failure import left_out, name_arguments
from fxquant.graph.float_dtype import own_dtype, split_move
from fxquant.graph.interpret import PlainInterpreter, interpret
from fxquant.graph.late_code import CODE, is_outdated, outdate
from fxquant.graph.paths import find_module
from fxquant.graph.preparation import Preparation
from fxquant.graph.region_parts import Origin, RegionParts, Stage
from fxquant.graph.region_state import after_load, give_state, take_state
from fxquant.graph.scripted import traced
from fxquant.graph.strayed import kept_by, strayed, unlike
from fxquant.graph.worn_class import wear, worn
from fxquant.graph.written_down import notice_export

if TYPE_CHECKING:
    from fxquant.graph.lowering import Lowering, Runner

log = logging.getLogger("fxquant")

# what nn.Module and GraphModule keep in __dict__ for themselves; everything else there is the user's
OWN_KEYS = frozenset(fx.GraphModule(nn.Module(), fx.Graph()).__dict__) | {"_region"}


class Region(fx.GraphModule):
    """A captured graph over the user's module tree. See the module docstring."""

    _region: RegionParts

    def __init__(self, tree: nn.Module, graph: fx.Graph, origin: Origin | None = None) -> None:
        super().__init__(nn.Module(), fx.Graph(), class_name=type(tree).__name__)
        for key, value in tree.__dict__.items():
            if key == "forward":
                continue  # a forward put on the instance would hide the graph's
            if key not in OWN_KEYS or key in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[key] = value
        self.training = tree.training
        self._region = RegionParts(origin=origin or Origin(user_class=type(tree)))
        lend_methods(type(self), self._region.origin.user_class, _is_own)
        _take(self, graph)
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

    @property
    def __class__(self) -> type:
        """Inside a model the user's class, so that `isinstance(layer, Block)` in the code around goes on working.

        TorchDynamo would take the user's forward for the graph's then, and run it in float, so it sees the region.
        """
        parts = self.__dict__.get("_region")
        if parts is None or not parts.origin.path or torch_compat.dynamo_traces():
            return type(self)
        found: type = worn(self) or parts.origin.said_class
        return found

    @__class__.setter
    def __class__(self, cls: type) -> None:
        wear(self, cls, self._region.origin.said_class)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            parts = self.__dict__.get("_region")
            if parts is None:
                raise
            if name in CODE and is_outdated(self):
                self.recompile()
                return getattr(self, name)
            origin: Origin = parts.origin
            if origin.flat:
                owner = self._modules[origin.flat]
                if owner is not None and (name in owner._parameters or name in owner._buffers):
                    # what code outside reads is the float weight, also when integers are stored
                    read: Any = getattr(owner, "as_float", None)
                    return getattr(owner, name) if read is None else read(name)
            # methods, properties and class attributes of the user's model go on working on this one
            for cls in origin.user_class.__mro__:
                if name in cls.__dict__ and cls is not nn.Module:
                    attribute = cls.__dict__[name]
                    return attribute.__get__(self, cls) if hasattr(attribute, "__get__") else attribute
            raise

    def get_submodule(self, target: str) -> nn.Module:
        """Find a module by the tables of children: passes ask often, and attributes are looked up slowly.

        It also finds a region that stands for a parameter, which reads as a tensor.
        """
        found = find_module(self, target)
        return super().get_submodule(target) if found is None else found

    @property
    def _self(self) -> nn.Module:
        """An instance of the user's class over this region's own state, for methods that are left as written.

        It is made anew for each read and shares the whole `__dict__`: `self.training`, attributes and submodules are
        the region's. Graphs read it as `get_attr _self`.
        """
        cls = self._region.origin.user_class
        view = cls.__new__(cls)
        object.__setattr__(view, "__dict__", self.__dict__)
        return view

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the graph. Inside a model, a call that it does not cover runs the user's code, in float.

        So the other arm of a branch may call a module in another way than the example inputs did.
        """
        if self._region.strayed and (changed := unlike(self._region.strayed, kept_by(self, OWN_KEYS))):
            (_, name), *_ = changed
            why = f"its code has changed the attribute {name!r}, which was another when the model was captured."
            return self._run_code(InputError(why), args, kwargs)
        if self._region.lowering is None:
            return self.run_graph(args, kwargs)
        return call_lowered(self, self._region, self._run_code, args, kwargs)

    def run_graph(self, args: tuple[object, ...], kwargs: dict[str, object], stand_in: object = None) -> object:
        """Run the graph node by node, hooks included. With a `stand_in`, its attributes are read, and no hook runs."""
        try:
            if stand_in is not None:
                return type(self).forward(stand_in, *args, **kwargs)
            return super().__call__(*args, **kwargs)
        except (InputError, TypeError, AttributeError) as error:
            graph_fails = not isinstance(error, InputError) and self._takes(args, kwargs)
            if (why := left_out(self, self._region.origin, args, kwargs) if graph_fails else error) is None:
                raise
            return self._run_code(why, args, kwargs)

    def _takes(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        try:
            inspect.signature(self.forward).bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def _run_code(self, error: Exception, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not self._region.origin.path:
            raise name_arguments(error, self._region.origin, kwargs) from None
        before = kept_by(self, OWN_KEYS)
        try:
            result = as_written(self._self, self._region.origin)(*args, **kwargs)
        except Exception:
            # the code needs something that the graph took over, or takes no such call itself
            raise error from None
        self._region.strayed = {**strayed(before, kept_by(self, OWN_KEYS)), **self._region.strayed}
        if not self._region.uncovered:
            self._region.uncovered = str(error)
            log.warning("module %r runs in float when called like this: %s", self._region.origin.path, error)
        return result

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> object:
        lowering = self._region.lowering
        if lowering is not None:
            own = own_dtype(self.graph)
            fn, dtype = split_move(fn, own)
            if dtype is not None:
                lowering.float_dtype = None if dtype == own else dtype
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script reads source, and a converted model has kernels in place of it: it gets a trace."""
        return self if self._region.lowering is None else traced(self, self._region.origin)

    def extra_repr(self) -> str:
        runner = runner_of(self)
        return "" if runner is None else f"engine={runner.engine!r}"

    def recompile(self) -> PythonCode:
        """Make `forward` of the graph."""
        code = super().recompile()
        # fx's own prints generated code when a call fails, and drops the traceback
        type(self).__call__ = Region.__call__  # type: ignore[method-assign]
        type(self).forward = _seen_by_tracers(type(self).forward)  # of a class that this instance alone has
        return code

    @property
    def graph(self) -> fx.Graph:
        # torch.export calls `forward`, or runs the graph of a whole model node by node, and not the module
        if torch.compiler.is_exporting():
            notice_export(runner_of(self))
        return self._graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        if "_region" not in self.__dict__:
            _take(self, graph)  # the empty one with which GraphModule begins
        else:
            fx.GraphModule.graph.fset(self, graph)  # type: ignore[attr-defined]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return its tensors, under the names that the float model has for them (region_state.py)."""
        found = super().state_dict(*args, **kwargs)
        give_state(self._graph, self._region, found, kwargs.get("prefix", args[1] if len(args) > 1 else ""))
        return found

    def _load_from_state_dict(
        self, state_dict: dict[str, object], prefix: str, local_metadata: dict[str, object], *args: object
    ) -> None:
        take_state(self, self._region, state_dict, prefix, local_metadata, cast(list[str], args[-1]))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def __deepcopy__(self, memo: dict[int, object]) -> Region:
        return _rebuild(copy.deepcopy(self._plain_state(), memo), copy.deepcopy(self.graph, memo), like=self)

    def __copy__(self) -> Region:
        # a graph and a state of its own: a pass over the copy must not change the original
        state = {**self._plain_state(), "_region": copy.copy(self._region)}
        return _rebuild(state, copy.deepcopy(self.graph), like=self)

    def __reduce__(self) -> tuple[object, ...]:
        state = {**self._plain_state(), "_region": self._region.for_pickle()}
        return _rebuild, (state, encode_graph(self.graph))

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return self.__reduce__()

    def _plain_state(self) -> dict[str, object]:
        # a forward on the instance is there while hooks are (engines/hooks.py)
        dropped = ("forward", "_graph", *CODE, "_tracer_cls", "_tracer_extras", "shape_env")
        return {key: value for key, value in self.__dict__.items() if key not in dropped}


def _take(region: Region, graph: fx.Graph) -> None:
    if (earlier := region.__dict__.get("_graph")) is not None:
        earlier.owning_module = None
    region._graph, graph.owning_module = graph, region
    outdate(region)


def _seen_by_tracers(forward: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(forward)
    def run(self: Region, *args: object, **kwargs: object) -> object:
        if torch.compiler.is_exporting():
            notice_export(runner_of(self))
        lowering = self._region.lowering
        if (
            lowering is not None
            and lowering.filled is not None
            and any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))
        ):
            # kernels look into tensors, of which torch.fx.symbolic_trace has none: it gets the QDQ graph
            return interpret(PlainInterpreter(self, graph=lowering.filled.graph(self)), args, kwargs)
        return forward(self, *args, **kwargs)

    return run


def _after_load(region: Region, incompatible_keys: tuple[list[str], list[str]]) -> None:
    after_load(region, region._region, incompatible_keys)


def _is_own(region: Region, name: str) -> bool:
    """Tell whether a child is one that the user's model does not have.

    Those are observers, grids, which nothing calls, and kernels.
    """
    preparation = region._region.preparation
    paths = (preparation.quantizer_path, preparation.statistics_path, kernel_path_of(region))
    return name in paths or type(region._modules[name]) is nn.Module


def _rebuild(state: dict[str, object], rows: fx.Graph | EncodedGraph, like: Region | None = None) -> Region:
    """Make a region again; its code is that of `like`, if the graph is a copy of that one's."""
    region, graph = Region(nn.Module(), fx.Graph()), rows if isinstance(rows, fx.Graph) else decode_graph(rows)
    region.__dict__.update(state)
    if region._region.lowering is not None:
        region._region.lowering.copied(region)
    # GraphModule.__new__ gave this instance a class of its own, so its name is ours to set
    type(region).__name__ = region._region.origin.user_class.__name__
    lend_methods(type(region), region._region.origin.user_class, _is_own)
    if like is None:
        region.graph = graph
        return region
    if is_outdated(like):
        _take(region, graph)
        return region
    region.recompile()  # of the empty graph: it gives a class what fx gives it besides `forward`
    region._graph, graph.owning_module = graph, region
    type(region).forward = type(like).forward
    region.__dict__.update({key: like.__dict__[key] for key in CODE if key in like.__dict__})
    return region


def origin_of(region: Region) -> Origin:
    """Return what capture found out about a region."""
    return region._region.origin


def set_origin(region: Region, origin: Origin) -> None:
    """Capture only: say where a region comes from and where it stands."""
    region._region.origin = origin
    lend_methods(type(region), origin.user_class, _is_own)


def preparation_of(region: Region) -> Preparation:
    """Return what was decided about a region."""
    return region._region.preparation


def lowering_of(region: Region) -> Lowering:
    """Tell how a converted region runs."""
    lowering = region._region.lowering
    if lowering is None:
        raise StageError(
            f"the region {region._region.origin.path or '<root>'!r} is not converted. Run convert_fx first."
        )
    return lowering


def set_lowering(region: Region, lowering: Lowering) -> None:
    """Say that a region is converted, and how it runs."""
    region._region.lowering = lowering


def instead_of(region: Region) -> Callable[..., object] | None:
    """Return what a region was given to run in the place of its graph, or None."""
    return region._region.instead


def set_instead(region: Region, forward: Callable[..., object] | None) -> None:
    """Note what a region runs in the place of its graph, or None."""
    region._region.instead = forward


def stage_of(region: Region) -> Stage:
    """Tell how far a region has come, by what it knows."""
    return region._region.stage


def runner_of(region: Region) -> Runner | None:
    """Return what an engine runs a region with; None if it runs its graph."""
    lowering = region._region.lowering
    return None if lowering is None else lowering.runner


def engine_of(region: Region) -> str:
    """Return what runs a region: "onednn" stands for torch's own ops, too."""
    runner = runner_of(region)
    return "onednn" if runner is None else runner.engine


def kernel_path_of(region: Region) -> str:
    """Tell where a region has the kernels that an engine gave it, or ""."""
    lowering = region._region.lowering
    return "" if lowering is None else lowering.kernel_path


def take_uncovered(region: Region) -> str:
    """Return why calls of a region ran in float, or "", and forget it: the next such call says so again."""
    why, region._region.uncovered = region._region.uncovered, ""
    return why


def region_name(region: Region) -> str:
    """Return what to call a region in a message: its path, or the user's class for a whole model."""
    origin = region._region.origin
    return origin.path or origin.user_class.__name__


def regions(model: nn.Module) -> Iterator[tuple[str, Region]]:
    """Yield the regions of a model with their paths; a fully traced model has one, at the path ''."""
    for path, module in model.named_modules():
        if isinstance(module, Region):
            yield path, module


def user_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that the user wrote, also of a region."""
    return module._region.origin.user_class if isinstance(module, Region) else type(module)
