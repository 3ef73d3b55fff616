"""Weighted functions in code that does not trace: `F.conv2d(x, self.w)`, `x @ self.w`.

The parameter gives way to a region of one op, at its own path, and reading `self.w` gives a stand-in for the tensor.
Where the code passes that to the function that the example run saw, spelled the same way, the region runs; anything
else that is done with it gets the float tensor. So the code runs as written, on both arms of every branch, and only
calls whose weight is known to be a weight are quantized.

Why not TorchDynamo: its graph fragments live in one process and are made anew for each guard, so observers would have
no identity to keep from calibration to conversion, and the result could not be saved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from fxquant.capture.canonical.stock import RECIPES, build, read_call
from fxquant.capture.piecewise.calls import Use
from fxquant.capture.piecewise.stock_region import leaf_region
from fxquant.graph.region import Region, origin_of
from fxquant.ops.table import OpTable

_SITES = "_fxquant_sites"
_PRODUCTS = ("matmul", "mm", "__matmul__", "addmm")  # of an activation and a weight stored as [in, out]
_MATMUL, _ADDMM = ("<tensor>", "<weight>"), ("<tensor>", "<tensor>", "<weight>")
_METADATA = frozenset(("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf"))


@dataclass(frozen=True, slots=True)
class Spelling:
    """A call of a function on a weight: its name, and its arguments with tensors replaced by their parts."""

    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def is_product(self) -> bool:
        """`x @ w`, or `addmm(bias, x, w)`: a linear layer with its weight transposed."""
        return self.name in _PRODUCTS and self.args == (_ADDMM if self.name == "addmm" else _MATMUL) and not self.kwargs


def spell(
    func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], weight: object
) -> tuple[Spelling, list[Tensor]]:
    """Return the spelling of a call, and the tensors in it besides the weight, in order."""
    tensors: list[Tensor] = []

    def mark(value: object) -> object:
        if value is weight:
            return "<weight>"
        if isinstance(value, Tensor):
            tensors.append(value)
            return "<tensor>"
        return tuple(value) if isinstance(value, list) else value

    spelled = tuple(mark(value) for value in args), tuple((key, mark(value)) for key, value in kwargs.items())
    return Spelling(func.__name__, *spelled), tensors


def is_weighted_use(use: Use, parameter: Tensor, ops: OpTable) -> bool:
    """Tell whether a use of a parameter is a weighted op, with the parameter as its weight."""
    spelling, tensors = spell(use.function, use.args, use.kwargs, parameter)
    if spelling.is_product:
        return parameter.dim() == 2
    op = ops.of(use.function)
    if op is None or not op.has_weight or not 1 <= len(tensors) <= 2:
        return False
    at = op.params.index("weight")
    return spelling.args[at : at + 1] == ("<weight>",) or dict(spelling.kwargs).get("weight") == "<weight>"


def weight_region(use: Use, parameter: Tensor, ops: OpTable) -> tuple[Region, Spelling] | None:
    """Return the region of one op for a weighted use; None if no stock module can say it."""
    spelling, tensors = spell(use.function, use.args, use.kwargs, parameter)
    if spelling.is_product:
        inputs, outputs = parameter.shape
        module: nn.Module = nn.Linear(inputs, outputs, bias=False, device="meta")
        module._parameters["weight"] = nn.Parameter(parameter.detach().t(), requires_grad=parameter.requires_grad)
    else:
        graph = fx.Graph()
        nodes = {id(tensor): graph.placeholder("x") for tensor in (parameter, *tensors)}

        def as_node(value: object) -> Any:
            return nodes.get(id(value), value)

        call = read_call(
            graph.call_function(
                use.function, tuple(map(as_node, use.args)), {k: as_node(v) for k, v in use.kwargs.items()}
            )
        )
        op = ops.of(use.function)
        assert op is not None
        if call is None or op.kind not in RECIPES:
            return None
        if not isinstance(parameter, nn.Parameter):
            parameter = nn.Parameter(parameter.detach(), requires_grad=False)
        stock = RECIPES[op.kind]({**call, "bias": None}, {"weight": parameter, "bias": None}, None)
        if stock is None:
            return None
        module = build(stock, None, {"weight": parameter})
    return leaf_region(module.eval(), [], ops), spelling


class Weight(Tensor):
    """Stands for a parameter that is kept in a region; see the module docstring."""

    region: Region
    spelling: Spelling

    @staticmethod
    def __new__(cls, region: Region, spelling: Spelling) -> Weight:
        op = region._modules[origin_of(region).flat]
        assert op is not None and isinstance(op.weight, Tensor)
        stored = tuple(getattr(op, "weight_shape", op.weight.shape))  # integers may be packed
        shape = tuple(reversed(stored)) if spelling.is_product else stored
        dtype = op.weight.dtype if op.weight.is_floating_point() else torch.float32
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=op.weight.device)
        made.region, made.spelling = region, spelling
        assert isinstance(made, Weight)
        return made

    def __init__(self, region: Region, spelling: Spelling) -> None:
        pass

    def read(self) -> Tensor:
        """Return the float tensor."""
        weight: Tensor = self.region.weight
        return weight.t() if self.spelling.is_product else weight

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        read = getattr(getattr(func, "__self__", None), "__name__", "")
        if getattr(func, "__name__", "") == "__get__" and read in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        weight = next((value for value in (*args, *kwargs.values()) if isinstance(value, Weight)), None)
        if weight is not None:
            spelling, tensors = spell(func, args, kwargs, weight)
            if spelling == weight.spelling and not any(isinstance(tensor, Weight) for tensor in tensors):
                return _run(weight, tensors)
        args, kwargs = torch.utils._pytree.tree_map(_read, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        args, kwargs = torch.utils._pytree.tree_map(_read, (args, kwargs or {}))
        return func(*args, **kwargs)


def _read(value: object) -> object:
    return value.read() if isinstance(value, Weight) else value


def _run(weight: Weight, tensors: list[Tensor]) -> Tensor:
    if weight.spelling.name == "addmm":
        tensors = tensors[::-1]
    result: Tensor = weight.region(tensors[0])
    if len(tensors) > 1:  # the bias: along the channels, which come last but for convolutions
        bias, dims = tensors[1], weight.dim() - 2
        result = result + (bias.reshape(-1, *(1,) * dims) if dims else bias)
    return result


def put_weights(
    module: nn.Module, sites: dict[str, tuple[Region, Spelling]]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what puts regions in the place of a module's parameters, and what undoes it.

    The module, one of ours, gets a class derived from its own.
    """
    base = type(module)
    tables = (module._parameters, module._buffers, module.__dict__)
    held: dict[str, Any] = {name: next(table for table in tables if name in table) for name in sites}
    tensors = {name: held[name][name] for name in sites}

    def put() -> None:
        for name, (region, _) in sites.items():
            del held[name][name]
            module._modules[name] = region
        read_as_weights(module, {name: spelling for name, (_, spelling) in sites.items()})

    def undo() -> None:
        module.__class__ = base
        del module.__dict__[_SITES]
        for name in sites:
            del module._modules[name]
            held[name][name] = tensors[name]

    return put, undo


def read_as_weights(module: nn.Module, spellings: dict[str, Spelling]) -> None:
    """Let the regions that a module has at these names read as the weights that they stand for."""
    module.__dict__[_SITES] = spellings
    module.__class__ = _with_weights(cast(Any, type(module)), tuple(spellings))


def weight_spellings(module: nn.Module) -> dict[str, Spelling]:
    """Return what `read_as_weights` was given for a module."""
    found: dict[str, Spelling] = module.__dict__.get(_SITES, {})
    return found


@functools.cache
def _with_weights(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    def reader(name: str) -> property:
        return property(lambda self: Weight(self._modules[name], self.__dict__[_SITES][name]))

    def reduce(self: nn.Module, protocol: object) -> tuple[object, ...]:
        return _remake, (base, names), self.__dict__

    members: dict[str, Any] = {name: reader(name) for name in names}

    def load(self: nn.Module, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        for name in names:  # the float model's own name
            if prefix + name in state_dict:
                value = state_dict.pop(prefix + name)
                product = self.__dict__[_SITES][name].is_product
                state_dict[f"{prefix}{name}.weight"] = value.t() if product else value
        base._load_from_state_dict(self, state_dict, prefix, *args)

    members.update(__module__=base.__module__, __qualname__=base.__qualname__, __reduce_ex__=reduce)
    members["_load_from_state_dict"] = load
    return type(base.__name__, (base,), members)


def _remake(base: object, names: tuple[str, ...]) -> nn.Module:
    cls = _with_weights(base, names)
    return cls.__new__(cls)
