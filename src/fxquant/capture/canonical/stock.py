"""How a call of an op on tensors is said as a stock torch.nn module: one recipe per kind of the op table.

`read_call` brings every spelling (F.*, torch.*, ATen overload) to one set of argument names; a recipe turns those into
the module class, its constructor arguments and the tensors it owns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx, nn

Arguments = dict[str, Any]
Tensors: TypeAlias = Mapping[str, Tensor | None]  # that a call gives an op, by name
_NAMES = {"self": "input", "indices": "input", "train": "training"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stock:
    """A module to be: `cls(**settings)` with `tensors` (graph nodes or None, by name). `transposed`: see addmm."""

    cls: type[nn.Module]
    settings: Mapping[str, Any]
    tensors: Mapping[str, fx.Node | None]
    training: bool | None = None  # the flag burned into the call, for ops that have one
    transposed: bool = False
    own: tuple[str, ...] = ()  # settings that a module of this class knows better than the call
    certain: bool = True  # False if the class is a guess, to be used only if the user's module confirms it


def read_call(node: fx.Node) -> Arguments | None:
    """Return the arguments by canonical name, defaults filled in; None if the spelling has no known signature."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload):
        try:
            bound = inspect.signature(target).bind(*node.args, **node.kwargs)
        except (TypeError, ValueError):  # a builtin, which has the signature of the ATen op it is
            packet = getattr(torch.ops.aten, str(getattr(target, "__name__", target)), None)
            if packet is None:
                return None
            target = getattr(packet, packet.overloads()[0])
        else:
            bound.apply_defaults()
            return {_NAMES.get(key, key): value for key, value in bound.arguments.items()}
    schema = target._schema.arguments
    if len(node.args) > len(schema):
        return None
    values = {a.name: a.default_value for a in schema}
    values.update(zip((a.name for a in schema), node.args, strict=False))
    values.update({"self" if key == "input" and "self" in values else key: v for key, v in node.kwargs.items()})
    return {_NAMES.get(key, key): value for key, value in values.items()}


def _tuple(value: object, dims: int) -> object:
    if isinstance(value, str):
        return value
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return items * dims if len(items) == 1 else items


def weight_of(tensors: Tensors) -> Tensor:
    """Return the weight of an op that cannot be without."""
    weight = tensors["weight"]
    assert weight is not None
    return weight


def _owned(call: Arguments, *names: str) -> dict[str, fx.Node | None]:
    return {name: call.get(name) for name in names}


def _conv(dims: int, transposed: bool) -> Callable[[Arguments, Tensors, int | None], Stock]:
    cls: type[nn.Module] = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")

    def recipe(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock:
        shape, groups = weight_of(tensors).shape, call["groups"]
        first, second = (shape[0], shape[1] * groups) if transposed else (shape[1] * groups, shape[0])
        settings = {
            "in_channels": first,
            "out_channels": second,
            "kernel_size": tuple(shape[2:]),
            **{name: _tuple(call[name], dims) for name in ("stride", "padding", "dilation")},
            "groups": groups,
            "bias": call.get("bias") is not None,
        }
        if transposed:
            settings["output_padding"] = _tuple(call["output_padding"], dims)
        return Stock(cls=cls, settings=settings, tensors=_owned(call, "weight", "bias"))

    return recipe


def _linear(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock:
    out_features, in_features = weight_of(tensors).shape
    settings = {"in_features": in_features, "out_features": out_features, "bias": call.get("bias") is not None}
    return Stock(cls=nn.Linear, settings=settings, tensors=_owned(call, "weight", "bias"))


def _embedding(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock | None:
    if call.get("max_norm") is not None:
        return None  # it changes its own weight
    count, dim = weight_of(tensors).shape
    padding = call["padding_idx"]
    settings = {
        "num_embeddings": count,
        "embedding_dim": dim,
        "padding_idx": None if padding is None or padding < 0 else padding,
        "scale_grad_by_freq": call["scale_grad_by_freq"],
        "sparse": call["sparse"],
    }
    return Stock(cls=nn.Embedding, settings=settings, tensors=_owned(call, "weight"))


def _batch_norm(prefix: str) -> Callable[[Arguments, Tensors, int | None], Stock | None]:
    def recipe(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock | None:
        known = [tensor for tensor in tensors.values() if tensor is not None]
        dims = {2: 1, 3: 1, 4: 2, 5: 3}.get(ndim or 4)
        if dims is None:
            return None
        settings = {
            "num_features": known[0].numel() if known else None,
            "eps": call["eps"],
            "momentum": call["momentum"],
            "affine": tensors["weight"] is not None,
            "track_running_stats": tensors["running_mean"] is not None,
        }
        return Stock(
            cls=getattr(nn, f"{prefix}{dims}d"),
            settings=settings,
            tensors=_owned(call, "weight", "bias", "running_mean", "running_var"),
            training=bool(call.get("training", call.get("use_input_stats"))),
            own=("momentum", "num_features"),
            certain=ndim is not None,
        )

    return recipe


def _layer_norm(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock:
    settings = {
        "normalized_shape": tuple(call["normalized_shape"]),
        "eps": call["eps"],
        "elementwise_affine": tensors["weight"] is not None,
    }
    if tensors["weight"] is not None:
        settings["bias"] = tensors["bias"] is not None
    return Stock(cls=nn.LayerNorm, settings=settings, tensors=_owned(call, "weight", "bias"), own=("bias",))


def _group_norm(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock:
    weight = tensors["weight"]
    settings = {
        "num_groups": call["num_groups"],
        "num_channels": None if weight is None else weight.numel(),
        "eps": call["eps"],
        "affine": weight is not None,
    }
    return Stock(cls=nn.GroupNorm, settings=settings, tensors=_owned(call, "weight", "bias"), own=("num_channels",))


def _prelu(call: Arguments, tensors: Tensors, ndim: int | None) -> Stock:
    settings = {"num_parameters": weight_of(tensors).numel()}
    return Stock(cls=nn.PReLU, settings=settings, tensors=_owned(call, "weight"))


Recipe = Callable[[Arguments, Tensors, "int | None"], "Stock | None"]
RECIPES: Mapping[str, Recipe] = {
    **{f"conv{dims}d": _conv(dims, False) for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": _conv(dims, True) for dims in (1, 2, 3)},
    "linear": _linear,
    "embedding": _embedding,
    "batch_norm": _batch_norm("BatchNorm"),
    "instance_norm": _batch_norm("InstanceNorm"),
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "prelu": _prelu,
}
TENSORS = ("weight", "bias", "running_mean", "running_var")


def build(stock: Stock, source: nn.Module | None, tensors: Tensors) -> nn.Module:
    """Return the stock module, sharing `tensors`; children, further state and plain attributes come from `source`."""
    settings = dict(stock.settings)
    if source is not None and isinstance(source, stock.cls):
        settings.update({name: getattr(source, name) for name in stock.own if hasattr(source, name) and name != "bias"})
    module = stock.cls(**settings, device="meta")
    for name, tensor in tensors.items():
        if name in module._parameters:
            module._parameters[name] = cast("nn.Parameter | None", tensor)
        elif name in module._buffers:
            module._buffers[name] = tensor
    if "num_batches_tracked" in module._buffers:
        module._buffers["num_batches_tracked"] = torch.tensor(0, dtype=torch.long)
    if source is None:
        return module
    known = {*module._parameters, *module._buffers} - {"num_batches_tracked"}
    module._parameters.update({name: t for name, t in source._parameters.items() if name not in known})
    module._buffers.update({name: t for name, t in source._buffers.items() if name not in known})
    module._modules.update(source._modules)
    module._non_persistent_buffers_set.update(source._non_persistent_buffers_set)
    for name, value in source.__dict__.items():
        if name not in module.__dict__ and name != "forward":
            module.__dict__[name] = value
    module.training = source.training
    return module
