"""Modules as JSON rows, and back, without running anything from the file.

stock    a class of torch.nn, or a form of one from fxquant.modules, with its plain settings
weight   a holder of integer weights
grid     a holder of the scale and zero point of an activation
user     any other module: the name of its class, to compare with what the float model has there
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxquant.archive.stock_fields import check_settings, fields_of, stock_classes
from fxquant.archive.value_json import from_json, is_whole, to_json
from fxquant.config.spec import Spec
from fxquant.errors import ArchiveError
from fxquant.graph.region import user_class
from fxquant.graph.torch_compat import is_scripted, script_class
from fxquant.numerics.grid import INTEGERS, Grid
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.passes.convert_weights import shell_of

Row = dict[str, Any]
_HOLDER = ("weight", "weight_scale", "weight_zero_point", "bias")


def name_of(cls: type) -> str:
    """Return the qualified name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def stock_class(name: str) -> type[nn.Module] | None:
    """Return the class of torch.nn or fxquant.modules with this name."""
    return stock_classes().get(name)


def same_class(cls: type, name: str) -> bool:
    """Tell whether a class goes by a stored name.

    A script's classes are in `__main__`, and elsewhere if it is imported.
    """
    package, own = name.removesuffix(f".{cls.__qualname__}"), cls.__module__
    return name == name_of(cls) or (name != package and "__main__" in (package, own))


def stock_row(module: nn.Module) -> Row | None:
    """Return the row of a stock module; None if it is none, or has settings that are not plain, or its own forward."""
    if stock_class(name_of(type(module))) is not type(module) or "forward" in module.__dict__:
        return None
    fields = fields_of(type(module))
    settings = {key: value for key, value in module.__dict__.items() if key in fields}
    try:
        stored = to_json(check_settings(type(module), settings))
    except ArchiveError:
        return None
    absent = [name for name, value in (*module._parameters.items(), *module._buffers.items()) if value is None]
    row = {"kind": "stock", "class": name_of(type(module)), "settings": stored, "absent": absent}
    return {**row, "training": True} if module.training else row


def user_row(module: nn.Module) -> Row:
    """Return the row of any other module."""
    row = {"kind": "user", "class": name_of(script_class(module) if is_scripted(module) else user_class(module))}
    return {**row, "training": True} if module.training else row


def weight_row(holder: QuantizedWeight) -> Row:
    """Return the row of a holder. Its shell, for the user's own code, comes from the float model if it is not stock."""
    shell: nn.Module | None = holder.__dict__.get("shell")
    stored = None if shell is None else stock_row(shell)
    if shell is not None and stored is not None:
        stored["present"] = [name for name, value in shell._parameters.items() if value is not None]
        if holder.float_dtype != torch.float32:
            stored["dtype"] = to_json(holder.float_dtype)
    packed = {} if holder.tail is None else {"tail": list(holder.tail)}
    return {"kind": "weight", "op": holder.kind, "spec": to_json(holder.spec), "shell": stored, **packed}


def grid_row(grid: Grid) -> Row:
    """Return the row of a grid; its numbers are tensors."""
    ends = {"quant_min": grid.quant_min, "quant_max": grid.quant_max}
    axis = {} if grid.axis is None else {"axis": grid.axis}
    return {"kind": "grid", **ends, "dtype": to_json(grid.dtype), **axis}


def build_grid(row: Row) -> Grid:
    """Return a grid without its numbers."""
    dtype = from_json(row["dtype"])
    if dtype not in INTEGERS:
        raise ArchiveError(
            f"the file has a grid of {str(dtype)[:40]}, which are no integers that tensors are stored as."
        )
    if "axis" in row and not is_whole(row["axis"], 0, 64):
        raise ArchiveError(f"the file has a grid along the axis {str(row['axis'])[:40]}.")
    numbers = torch.tensor(float("nan")), torch.tensor(0)
    return Grid(*numbers, row["quant_min"], row["quant_max"], dtype, row.get("axis"))


def build_stock(row: Row) -> nn.Module:
    """Return a stock module without its tensors and children."""
    cls = stock_class(str(row["class"]))
    if cls is None:
        raise ArchiveError(f"the file names the module class {row['class']!r}, which torch.nn does not have.")
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.__dict__.update(check_settings(cls, from_json(row["settings"])))
    module.training = bool(row.get("training"))
    for name in row["absent"]:  # a norm without running statistics still has the attribute
        module.register_buffer(str(name), None)
    return module


def build_weight(row: Row, part: nn.Module | None) -> QuantizedWeight:
    """Return a holder without its tensors. `part` is what the float model has in its place."""
    spec = from_json(row["spec"])
    if not isinstance(spec, Spec):
        raise ArchiveError("the file has a weight without a spec.")
    holder = QuantizedWeight(str(row["op"]), spec, tuple(row["tail"]) if "tail" in row else None)
    for name in _HOLDER:
        holder.register_buffer(name, None)
    if row["shell"] is not None:
        shell = build_stock(row["shell"])
        dtype = from_json(row["shell"].get("dtype", to_json(torch.float32)))
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ArchiveError(f"the file has a weight that was of {str(dtype)[:40]}, which are no floats.")
        for name in row["shell"]["present"]:
            shell.register_parameter(str(name), nn.Parameter(torch.empty(0, dtype=dtype, device="meta"), False))
        holder.__dict__["shell"] = shell
    elif part is not None:
        holder.__dict__["shell"] = shell_of(part)
    if part is not None:
        holder._modules.update(part._modules)
    return holder
