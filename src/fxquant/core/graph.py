"""Regions: graph modules that keep the user's module tree, attributes and methods.

A `Region` is an `fx.GraphModule` whose submodules are the user's own tree (a clone that shares its tensors), so paths,
state_dict keys, plain attributes and methods stay as they were. Unlike a plain GraphModule it keeps `node.meta` through
deepcopy and pickling, since the graph is stored as rows (`encode_graph`), not as code to be traced again.

`node.meta` holds plain values only:
    scope   ((path, "package.Class"), ...) of the enclosing modules, outermost first
    where   "file.py:12" in the user's code, or ""
    tensor  TensorInfo, a tuple of them for a node that returns several, or None for anything else
    mutated True if the tensor may be changed in place after it is made (see capture/functionalize.py)
    note, decision   see core/plan.py
"""

from __future__ import annotations

import copy
import inspect
import logging
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from fxquant.core import compat
from fxquant.core.encode import decode_graph, encode_graph
from fxquant.core.loading import adapt_state
from fxquant.core.moved import cast, own_dtype, split_move
from fxquant.core.own import own_objects
from fxquant.core.paths import class_name, find_module, join_path
from fxquant.errors import FirstCallError, FxQuantError, InputError, StageError

log = logging.getLogger("fxquant")

# what nn.Module and GraphModule keep in __dict__ for themselves; everything else there is the user's
_OWN_KEYS = frozenset(fx.GraphModule(nn.Module(), fx.Graph()).__dict__) | {"_region"}


@dataclass(kw_only=True, slots=True)
class RegionState:
    """What a region knows besides its graph. `stage` is the last stage it passed."""

    stage: str = "captured"
    user_class: type[nn.Module] = nn.Module
    class_name: str = ""  # of the user's class, where a file names it and no one gave it
    method: str = "symbolic"
    num_inputs: int | None = None  # positional example inputs, so that calibrate() can drop labels
    input_names: tuple[str, ...] = ()
    quantizers: dict[str, Any] | None = None  # quantizer id -> Spec
    quantizer_path: str = ""  # where their modules are
    sites: dict[str, tuple[str, ...]] | None = None  # the tensors that each of them observes, in training
    request: Any = None  # core.plan.Request: what prepare_fx was asked for, as long as nothing is decided
    statistics_path: str = ""  # where the observers of a model are of which nothing is decided
    kernel_path: str = ""  # where the kernels of a lowered graph are
    reference: dict[str, Any] | None = None  # the QDQ graph, which reads its grids, encoded
    filled: Any = None  # keeps the graph that runs in step with the grids; see passes/fill_grids.py
    lower: Any = None  # the pass that lowers a QDQ graph, if it was lowered
    runner: Any = None  # runs a lowered graph; see engines/replay.py
    path: str = ""  # where the region stands in the model, as the rules name it
    outer: tuple[tuple[str, str], ...] = ()  # (path, class name) of the modules around it, outermost first
    flat: str = ""  # the child whose tensors count as the region's own: a stock module that is a region by itself
    order: int = 0  # ops of the same kind before it in the module around it, for such a child
    warned: bool = False  # that a call ran in float
    outside: torch.dtype | None = None  # what floats are outside of it, if not what they are inside; see core/moved.py
    boundary: Any = None  # core.boundary.Boundary: inputs and outputs that are integers
    shift: tuple[int, int] | None = None  # of the target, see core.target.Target
    source: str = ""  # the file that it came from, until a call went well
    moved: dict[str, tuple[str, bool]] | None = None  # the float model's name of a tensor -> (ours, transposed)


class Region(fx.GraphModule):
    """A captured graph over the user's module tree. See the module docstring."""

    _region: RegionState

    def __init__(self, tree: nn.Module, graph: fx.Graph, state: RegionState | None = None) -> None:
        super().__init__(nn.Module(), fx.Graph(), class_name=type(tree).__name__)
        for key, value in tree.__dict__.items():
            if key == "forward":
                continue  # a forward put on the instance would hide the graph's
            if key not in _OWN_KEYS or key in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[key] = value
        self.training = tree.training
        self._region = state or RegionState(user_class=type(tree))
        self.graph = graph
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

    @property
    def __class__(self) -> type:
        """Inside a model the user's class, so that `isinstance(layer, Block)` in the code around goes on working.

        TorchDynamo would take the user's forward for the graph's then, and run it in float, so it sees the region.
        """
        state = self.__dict__.get("_region")
        return type(self) if state is None or not state.path or compat.dynamo_traces() else state.user_class

    @__class__.setter
    def __class__(self, cls: type) -> None:  # torch.distributed's fully_shard derives a class of its own
        object.__dict__["__class__"].__set__(self, cls)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            state = self.__dict__.get("_region")
            if state is not None and state.flat:
                owner = self._modules[state.flat]
                if owner is not None and (name in owner._parameters or name in owner._buffers):
                    # what code outside reads is the float weight, also when integers are stored
                    read: Any = getattr(owner, "as_float", None)
                    return getattr(owner, name) if read is None else read(name)
            # methods, properties and class attributes of the user's model go on working on this one
            for cls in state.user_class.__mro__ if state is not None else ():
                if name in cls.__dict__ and cls is not nn.Module:
                    attribute = cls.__dict__[name]
                    return attribute.__get__(self, cls) if hasattr(attribute, "__get__") else attribute
            raise

    @property
    def _self(self) -> nn.Module:
        """An instance of the user's class over this region's own state, for methods that are left as written.

        It is made anew for each read and shares the whole `__dict__`: `self.training`, attributes and submodules are
        the region's. Graphs read it as `get_attr _self`.
        """
        view = self._region.user_class.__new__(self._region.user_class)
        object.__setattr__(view, "__dict__", self.__dict__)
        return view

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph. Inside a model, a call that it does not cover runs the user's code, in float.

        So the other arm of a branch may call a module in another way than the example inputs did.
        """
        if self._region.source:
            return self._first_call(args, kwargs)
        outside = self._region.outside
        if outside is not None:
            own = own_dtype(self.graph)
            args, kwargs = cast((args, kwargs), outside, own)
            return cast(self._call_as_converted(args, kwargs), own, outside)
        return self._call_as_converted(args, kwargs)

    def _call_as_converted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._region.filled is not None:
            self._region.filled.ready(self)
        if self._region.boundary is not None:
            self._refuse_floats(args, kwargs)
        if self._region.runner is not None and not torch.compiler.is_compiling():
            return self._region.runner(self, args, kwargs)
        return self.run_graph(args, kwargs)

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call while nothing shows yet that what the file says can run. An error is the file's, or the inputs'."""
        source, self._region.source = self._region.source, ""
        try:
            return self(*args, **kwargs)
        except Exception as error:
            self._region.source = source
            if isinstance(error, FirstCallError):
                raise
            given = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in args if isinstance(x, torch.Tensor))
            text = str(error) if isinstance(error, FxQuantError) else f"{type(error).__name__}: {error}"
            raise FirstCallError(
                f"the first call of the model from {source!r}, on ({given}), failed. {text} If the inputs are like "
                "the ones that it was quantized with, the file is not one that fxquant.save wrote."
            ) from error

    def run_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the graph node by node, hooks included."""
        try:
            return super().__call__(*args, **kwargs)
        except (InputError, TypeError) as error:
            if not self._region.path or (isinstance(error, TypeError) and self._takes(args, kwargs)):
                raise
            return self._run_code(error, args, kwargs)

    def _refuse_floats(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Where a converted model takes integers, floats would be read as such, and give a wrong answer."""
        names = self._region.input_names
        for index, grid in self._region.boundary.inputs.items():
            name = names[index] if index < len(names) else ""
            value = args[index] if index < len(args) else kwargs.get(name)
            grid = find_module(self, grid) if isinstance(grid, str) else grid
            wanted = getattr(grid, "dtype", None)  # before conversion there is none at this path
            if isinstance(value, torch.Tensor) and wanted is not None and value.dtype != wanted:
                raise InputError(
                    f"input {index} is {value.dtype}, but the model takes {wanted} there. "
                    f"fxquant.boundary_qparams(model).input({index}).quantize(x) makes it."
                )

    def _takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            inspect.signature(self.forward).bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def _run_code(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = self._self(*args, **kwargs)
        except Exception:
            # the code needs something that the graph took over, such as a parameter that is now a module's
            raise error from None
        if not self._region.warned:
            self._region.warned = True
            log.warning("module %r runs in float when called like this: %s", self._region.path, error)
        return result

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if self._region.stage == "converted":
            own = own_dtype(self.graph)
            fn, dtype = split_move(fn, own)
            if dtype is not None:
                self._region.outside = None if dtype == own else dtype
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __prepare_scriptable__(self) -> Any:
        """torch.jit.script reads source, and a converted model has kernels in place of it."""
        if self._region.stage == "converted":
            raise StageError(
                "torch.jit.script cannot take a converted model: it has kernels in place of source. Use "
                "torch.jit.trace(model, example_inputs), fxquant.save(model, path), or "
                "torch.export.export(model, example_inputs)."
            )
        return self

    def extra_repr(self) -> str:
        engine = getattr(self._region.runner, "engine", None)
        return "" if engine is None else f"engine={engine!r}"

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The tensors of a flat child go by the region's own name: `conv.weight`, not `conv.op.weight`."""
        found = super().state_dict(*args, **kwargs)
        if self._region.flat:
            own = kwargs.get("prefix", args[1] if len(args) > 1 else "")
            longer = f"{own}{self._region.flat}."
            for key in [key for key in found if key.startswith(longer)]:
                found[own + key.removeprefix(longer)] = found.pop(key)
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if self._region.flat:
            for key in [key for key in state_dict if key.startswith(prefix)]:
                rest = key.removeprefix(prefix)
                if rest.partition(".")[0] not in self._modules:
                    state_dict[f"{prefix}{self._region.flat}.{rest}"] = state_dict.pop(key)
        adapt_state(self, self._region, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        return _rebuild(copy.deepcopy(self._plain_state(), memo), copy.deepcopy(self.graph, memo))

    def __copy__(self) -> Region:
        # a graph and a state of its own: a pass over the copy must not change the original
        own = copy.copy(self._region)
        own.filled = copy.copy(own.filled)
        state = {**self._plain_state(), "_region": own}
        return _rebuild(state, copy.deepcopy(self.graph))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._plain_state(), encode_graph(self.graph))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def _plain_state(self) -> dict[str, Any]:
        # a forward on the instance is there while hooks are (engines/hooks.py)
        dropped = (
            "forward",
            "_graph",
            "_code",
            "_lineno_map",
            "_prologue_start",
            "_tracer_cls",
            "_tracer_extras",
            "shape_env",
        )
        return {key: value for key, value in self.__dict__.items() if key not in dropped}


def _after_load(region: Region, incompatible_keys: Any) -> None:
    """A state_dict was loaded into a region and all that is in it."""
    if region._region.filled is not None:
        region._region.filled.keep_up(region)
    if region._region.runner is not None:
        region._region.runner.renew()


def _rebuild(state: dict[str, Any], graph: fx.Graph) -> Region:
    region = Region(nn.Module(), fx.Graph())
    region.__dict__.update(state)
    # GraphModule.__new__ gave this instance a class of its own, so its name is ours to set
    type(region).__name__ = region._region.user_class.__name__
    region.graph = graph
    return region


def _unpickle(state: dict[str, Any], rows: dict[str, Any]) -> Region:
    return _rebuild(state, decode_graph(rows))


def engine_of(region: Region) -> str:
    """What runs a region: "onednn" stands for torch's own ops, too."""
    return str(getattr(region._region.runner, "engine", "onednn"))


def runs_step_by_step(step: nn.Module) -> bool:
    """Whether a module is a converted region whose engine has no `scan_all`."""
    if not isinstance(step, Region) or step._region.stage != "converted":
        return False
    return not hasattr(step._region.runner, "scan")


def scan_all(step: nn.Module, x: torch.Tensor, state: tuple[torch.Tensor, ...], backwards: bool) -> Any:
    """(outputs, final state) of `state = step(x[t], *state)` for all t, if the engine of the step has that as one call.

    None if it has not, or does not take this call: then the steps are run one by one.
    """
    if not isinstance(step, Region) or torch.compiler.is_compiling():
        return None
    scan = getattr(step._region.runner, "scan", None)
    if scan is not None and step._region.filled is not None:
        step._region.filled.ready(step)
    return None if scan is None else scan(step, x, state, backwards)


def regions(model: nn.Module) -> Iterator[tuple[str, Region]]:
    """The regions of a model with their paths; a fully traced model has one, at the path ''."""
    for path, module in model.named_modules():
        if isinstance(module, Region):
            yield path, module


def place_regions(model: nn.Module, root: str = "", outer: tuple[tuple[str, str], ...] = ()) -> None:
    """Tell every region of a model where it stands: `root` is the model's own path, `outer` what is around that."""
    for path, region in regions(model):
        steps = path.split(".") if path else []
        above = [".".join(steps[:count]) for count in range(len(steps))]
        around = [(join_path(root, at), class_name(user_class(model.get_submodule(at)))) for at in above]
        region._region.path = join_path(root, path)
        region._region.outer = (*outer, *around)


def user_class(module: nn.Module) -> type[nn.Module]:
    """The class that the user wrote, also of a region."""
    return module._region.user_class if isinstance(module, Region) else type(module)


def clone_tree(module: nn.Module, *, share_tensors: bool = True, share_objects: bool = True) -> nn.Module:
    """A copy of the module tree. Modules that occur at several paths stay one module.

    Plain attributes are shared; with `share_objects` False they are copied where that is safe (`core.own`), and so are
    buffers and plain tensors. Tensors are shared otherwise, unless `share_tensors` is False.
    """
    memo: dict[int, Any] = {}
    tree = _clone(module, memo, share_tensors)
    if not share_objects:
        if share_tensors:
            memo.update({id(parameter): parameter for parameter in module.parameters()})
        own_objects(tree, memo, buffers=share_tensors)
        return tree
    for clone in tree.modules():
        for name, value in clone.__dict__.items():
            # a method put on the instance (model.forward = ...) belongs to the original; give the clone its own
            if isinstance(value, types.MethodType) and id(value.__self__) in memo:
                clone.__dict__[name] = types.MethodType(value.__func__, memo[id(value.__self__)])
    return tree


def _clone(module: nn.Module, memo: dict[int, Any], share_tensors: bool) -> nn.Module:
    if id(module) in memo:
        return typing.cast(nn.Module, memo[id(module)])
    if compat.is_scripted(module):
        memo[id(module)] = module
        return module
    if isinstance(module, Region):
        tree: nn.Module = copy.copy(module)
    else:
        # not the class's own __new__: a GraphModule's makes another class, without a forward
        tree = object.__new__(type(module))
        tree.__dict__.update(module.__dict__)
    memo[id(module)] = tree
    for key, value in module.__dict__.items():
        if isinstance(value, dict) and key.startswith("_"):
            tree.__dict__[key] = copy.copy(value)
    tree.__dict__["_modules"] = {
        name: None if child is None else _clone(child, memo, share_tensors) for name, child in module._modules.items()
    }
    if not share_tensors:
        for table in (tree._parameters, tree._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = memo.setdefault(id(tensor), copy.deepcopy(tensor))
    return tree
