"""Arguments of a call in a stored graph that are no matter of shapes: geometry, counts, sizes, grids.

torch trusts some of them: a stride of 0 is a division by zero in a kernel, a list of 10^9 views fills the memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from fxquant.archive.check_weights import check_scale
from fxquant.archive.value_json import is_whole
from fxquant.errors import ArchiveError
from fxquant.graph import torch_compat
from fxquant.graph.region import Region
from fxquant.ops.table import OPS

MOST_PARTS = 100_000  # of what one node makes
MOST_DEGREE = 16  # of the product of sizes that a number is
_POWER = 64
_SIZING = frozenset(
    (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "new_empty", "new_full", "new_ones", "new_zeros"),
        *("ones", "rand", "randint", "randn", "randperm", "tril_indices", "triu_indices", "zeros", "expand", "repeat"),
        *("broadcast_to", "tile", "pad", "constant_pad_nd", "interpolate", "upsample", "one_hot", "repeat_interleave"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d", "fold", "affine_grid", "diag_embed"),
    )
)
_PARTS = {"unbind": 1, "split": 2, "chunk": 2, "tensor_split": 2, "hsplit": 2, "vsplit": 2, "dsplit": 2}
_GEOMETRY = (("stride", 1), ("dilation", 1), ("groups", 1), ("padding", 0), ("output_padding", 0))
_PRODUCTS = (operator.mul, operator.imul)
_POWERS = (operator.pow, operator.ipow)


def check_numbers(node: fx.Node, leaves: Iterable[object], args: tuple[Any, ...], degrees: list[int]) -> int:
    """The degree of a number that a node computes: of how many sizes it is the product. Too many are refused.

    So the numbers of a run on other sizes than the example's are bounded, too.
    """
    whole = all(isinstance(leaf, (int, float)) for leaf in leaves)
    if any(type(leaf) is int and abs(leaf) >= 2**63 for leaf in leaves):
        raise ArchiveError("it takes a whole number that does not fit 64 bits.")
    if node.target in _PRODUCTS and any(isinstance(arg, (list, tuple, str)) for arg in args):
        if not all(
            isinstance(arg, int) and arg <= 1024 for arg in node.args if not isinstance(arg, (list, tuple, fx.Node))
        ):
            raise ArchiveError("it repeats a list more than 1024 times.")
        if sum(isinstance(arg, fx.Node) for arg in node.args) > 1:
            raise ArchiveError("it repeats a list as often as the inputs say.")
    if not whole:
        return 1
    if node.target in _POWERS and not (is_whole(node.args[1], -_POWER, _POWER) or isinstance(node.args[1], float)):
        raise ArchiveError("it raises a number to a power that the inputs say, or a large one.")
    degree = sum(degrees) if node.target in _PRODUCTS else max(degrees, default=0)
    if node.target in _POWERS:
        degree *= max(1, math.ceil(abs(float(args[1]))))
    if degree > MOST_DEGREE:
        raise ArchiveError(f"it multiplies more than {MOST_DEGREE} sizes.")
    return degree


def check_values(
    node: fx.Node,
    region: Region,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    unknown: object,
    by_data: bool,
) -> None:
    """Raise an ArchiveError if a call has arguments that torch would trust."""
    word = _word(node)
    if by_data and word in _SIZING:
        raise ArchiveError("it makes a tensor of a size that is read from the values of another.")
    if word == "one_hot" and not is_whole(_given(node, args, kwargs, 1, "num_classes"), 1):
        raise ArchiveError("it makes a tensor of a size that is read from the values of another.")
    if word == "repeat_interleave" and not is_whole(_given(node, args, kwargs, 1, "repeats"), 0):
        raise ArchiveError("it makes a tensor of a size that is read from the values of another.")
    if word in _PARTS or node.target in (list, tuple):
        _check_parts(node, word, args, kwargs)
    op = OPS.of_node(node, region)
    if op is not None and "stride" in op.params:
        _check_geometry(op.params, args, kwargs)
    if node.target in torch_compat.QUANTIZE_OPS or node.target in torch_compat.DEQUANTIZE_OPS:
        _check_grid(node, args, kwargs, region)


def _word(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    return str(target if isinstance(target, str) else getattr(target, "__name__", ""))


def _given(node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object], at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)


def _check_parts(node: fx.Node, word: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    x = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(x, Tensor):
        return
    how = _given(node, args, kwargs, 1, {"split": "split_size", "chunk": "chunks"}.get(word, "indices_or_sections"))
    if isinstance(how, (list, tuple, Tensor)):
        return
    count = max(x.shape, default=0)
    if word == "split" and is_whole(how, 1):
        count = -(-count // how)
    elif word in ("chunk", "tensor_split", "hsplit", "vsplit", "dsplit") and is_whole(how, 0):
        count = how if word != "chunk" else min(how, count)
    elif word == "unbind" or node.target in (list, tuple):
        dim = how if is_whole(how, -x.dim(), x.dim() - 1) and word == "unbind" else kwargs.get("dim", 0)
        count = x.shape[dim] if x.dim() and is_whole(dim, -x.dim(), x.dim() - 1) else 0
    if count > MOST_PARTS:
        raise ArchiveError(f"it cuts a tensor into {count} parts.")


def _check_geometry(params: tuple[str, ...], args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    given = {**dict(zip(params, args, strict=False)), **kwargs}
    for name, least in _GEOMETRY:
        for value in tree_leaves(given.get(name)):
            if isinstance(value, str) and name == "padding" and value in ("same", "valid"):
                continue
            if isinstance(value, (int, float, str)) and not is_whole(value, least, 2**31 - 1):
                raise ArchiveError(f"a convolution has {name}={value!r}.")
    weight, bias = given.get("weight"), given.get("bias")
    if isinstance(weight, Tensor) and isinstance(bias, Tensor):
        groups = given.get("groups", 1)
        transposed = "output_padding" in params
        channels = weight.shape[1] * groups if transposed and isinstance(groups, int) else weight.shape[0]
        if bias.dim() != 1 or bias.shape[0] != channels:
            raise ArchiveError(f"a convolution of {channels} channels has a bias of the shape {tuple(bias.shape)}.")


def _check_grid(node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object], region: Region) -> None:
    """Scale, zero point, ends and dtype of a quantize or dequantize, by the names in its schema."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    low: Any = given.get("quant_min")
    high: Any = given.get("quant_max")
    dtype = given.get("dtype")
    if not isinstance(dtype, torch.dtype) or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        raise ArchiveError(f"it quantizes to {dtype}.")
    info = torch.iinfo(dtype)
    if not is_whole(low, info.min, info.max) or not is_whole(high, info.min, info.max) or low >= high:
        raise ArchiveError(f"its grid goes from {low} to {high}, which {dtype} does not hold.")
    scale, zero = given.get("scale", given.get("scales")), given.get("zero_point", given.get("zero_points"))
    if isinstance(scale, float) and not (math.isfinite(scale) and scale > 0):
        raise ArchiveError(f"its scale is {scale}.")
    if isinstance(scale, int) or (isinstance(zero, int) and not is_whole(zero, low, high)):
        raise ArchiveError(f"its scale is {scale} and its zero point {zero}, on a grid from {low} to {high}.")
    named = dict(zip(names, node.args, strict=False))
    for name in ("scale", "scales"):
        source = named.get(name)
        if isinstance(source, fx.Node) and source.op == "get_attr":
            check_scale(str(source.target), region_tensor(region, source), None)
    for name in ("zero_point", "zero_points"):
        source = named.get(name)
        if isinstance(source, fx.Node) and source.op == "get_attr":
            points = region_tensor(region, source)
            if points is not None and points.numel() and not (int(points.min()) >= low and int(points.max()) <= high):
                raise ArchiveError(f"{source.target} holds a zero point outside of {low} to {high}.")
    size = given.get("group_size")
    if size is not None and not is_whole(size, 1):
        raise ArchiveError(f"its group size is {size!r}.")


def region_tensor(region: Region, source: fx.Node) -> Tensor | None:
    """The tensor that a get_attr node reads."""
    owner_path, _, name = str(source.target).rpartition(".")
    owner = region.get_submodule(owner_path)
    return owner._parameters.get(name, owner._buffers.get(name))
