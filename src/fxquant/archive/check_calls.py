"""Arguments of a call in a stored graph that are no matter of shapes: geometry, counts, sizes, grids.

torch trusts some of them: a stride of 0 is a division by zero in a kernel, a list of 10^9 views fills the memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from fxquant.archive import whole_division
from fxquant.archive.check_amounts import BY_VALUES, check_operands, may_grow, word_of
from fxquant.archive.check_python import MOST_PARTS, Unknown
from fxquant.archive.check_weights import check_scale
from fxquant.archive.value_json import is_whole
from fxquant.capture import guards
from fxquant.errors import ArchiveError
from fxquant.graph import torch_compat
from fxquant.graph.region import Region
from fxquant.ops.table import OPS

_GRID_SAMPLERS = ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
_PARTS = {"unbind": 1, "split": 2, "chunk": 2, "tensor_split": 2, "hsplit": 2, "vsplit": 2, "dsplit": 2}
_NAMED = {  # torch also takes the number of one, and looks for it in its table, however far behind the end
    "ScalarType": (torch.dtype,),
    "Layout": (torch.layout,),
    "MemoryFormat": (torch.memory_format,),
    "Device": (torch.device, str),
}
_PACKED = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_GEOMETRY = (("stride", 1), ("dilation", 1), ("groups", 1), ("padding", 0), ("output_padding", 0))


def check_values(
    node: fx.Node, region: Region, args: tuple[object, ...], kwargs: Mapping[str, object], by_data: bool
) -> None:
    """Raise an ArchiveError if a call has arguments that torch would trust."""
    word = word_of(node)
    if node.target is guards.apply_in_place:
        word, args = str(args[1]), (args[0], *args[2:])
    if isinstance(node.target, torch._ops.OpOverload):
        _check_named(node.target, args, kwargs)
    if is_whole(kwargs.get("device")):
        raise ArchiveError(f"it is for the device {kwargs['device']}. A file is for the CPU.")
    if by_data and may_grow(node):
        raise ArchiveError(BY_VALUES)
    check_operands(node, args, kwargs)
    if word in _GRID_SAMPLERS:
        _check_modes(node, args, kwargs)
    if word == "one_hot" and not is_whole(_given(args, kwargs, 1, "num_classes"), 1):
        raise ArchiveError(BY_VALUES)
    if word == "repeat_interleave" and not is_whole(_given(args, kwargs, 1, "repeats"), 0):
        raise ArchiveError(BY_VALUES)
    own = node.target in (whole_division.divide, whole_division.divide_)
    if word.rstrip("_") in ("div", "divide") and not own and kwargs.get("rounding_mode") == "trunc":
        _check_quotient([*args, *(kwargs[name] for name in ("input", "self", "other") if name in kwargs)])
    if word in _PARTS:
        _check_parts(node, word, args, kwargs)
    op = OPS.of_node(node, region)
    if op is not None and "stride" in op.params:
        _check_geometry(op.params, args, kwargs)
        if _is_quantized(node, op.params):
            _check_kernel(op.params, args, kwargs)
    if op is not None and op.is_product:
        _check_dtypes(op.params, args, kwargs)
    if word == "native_group_norm" or (word in _PACKED and _is_packed(args, kwargs)):
        _check_whole(node, word)
    if "batch_norm" in word:
        _check_norm(args, kwargs)
    if word.lstrip("_").startswith("upsample_") and isinstance(node.target, torch._ops.OpOverload):
        _check_scales(node.target, args, kwargs)
    if node.target in torch_compat.QUANTIZE_OPS or node.target in torch_compat.DEQUANTIZE_OPS:
        _check_grid(node, args, kwargs, region)


def _check_modes(node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Torch writes nothing where it does not know the number of a mode, and memory is given as it was found."""
    for at, name in ((2, "interpolation_mode"), (3, "padding_mode")):
        if not is_whole(_given(args, kwargs, at, name), 0, 2):
            raise ArchiveError(f"{name}={_given(args, kwargs, at, name)!r} is no mode.")


def _given(args: tuple[object, ...], kwargs: Mapping[str, object], at: int, name: str) -> object:
    return args[at] if len(args) > at else kwargs.get(name)


def _check_named(op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    arguments = op._schema.arguments
    given = {**dict(zip((argument.name for argument in arguments), args, strict=False)), **kwargs}
    for argument in arguments:
        kinds = _NAMED.get(str(argument.real_type).removeprefix("Optional[").removesuffix("]"))
        value = given.get(argument.name)
        if kinds is not None and value is not None and not isinstance(value, kinds):
            raise ArchiveError(f"{argument.name}={value!r} is no {kinds[0].__name__}.")


def _check_quotient(given: list[object]) -> None:
    """Torch ends the process where it divides the lowest integer by -1, and rounds towards zero."""
    whole = [
        not each.is_floating_point() if isinstance(each, Tensor) else not isinstance(each, float) for each in given
    ]
    if all(whole) and not is_whole(given[-1], 0) and not is_whole(given[-1], -(2**63), -2):
        raise ArchiveError("it divides integers by what may be -1, and rounds towards zero. Round down, which is safe.")


def _check_parts(node: fx.Node, word: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    x = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(x, Tensor):
        return
    how = _given(args, kwargs, 1, {"split": "split_size", "chunk": "chunks"}.get(word, "indices_or_sections"))
    if isinstance(how, (list, tuple, Tensor)):
        return
    count = max(x.shape, default=0)
    if word == "split" and is_whole(how, 1):
        count = -(-count // how)
    elif word in ("chunk", "tensor_split", "hsplit", "vsplit", "dsplit") and is_whole(how, 0):
        count = how if word != "chunk" else min(how, count)
    elif word == "unbind":
        dim = how if is_whole(how, -x.dim(), x.dim() - 1) else kwargs.get("dim", 0)
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


def _check_dtypes(params: tuple[str, ...], args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Torch asks for one dtype when it computes; kernels of integers cast the bias."""
    given = {**dict(zip(params, args, strict=False)), **kwargs}
    given.pop("attn_mask", None)  # bools hide, floats are added
    dtypes = {str(value.dtype) for value in given.values() if isinstance(value, Tensor)}
    if len(dtypes) > 1:
        raise ArchiveError(f"it multiplies and adds tensors of {' and '.join(sorted(dtypes))}.")


def _is_quantized(node: fx.Node, params: tuple[str, ...]) -> bool:
    weight = node.args[params.index("weight")] if "weight" in params[: len(node.args)] else None
    return isinstance(weight, fx.Node) and weight.target in torch_compat.DEQUANTIZE_OPS


def _check_kernel(params: tuple[str, ...], args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Engines read all settings of a convolution of integers, one for each axis of a picture."""
    given = {**dict(zip(params, args, strict=False)), **kwargs}
    weight = given.get("weight")
    axes = weight.dim() - 2 if isinstance(weight, Tensor) else 0
    for name in params:
        if name not in given:
            raise ArchiveError(f"a convolution of integers has no {name}.")
        value = given[name]
        by_axis = name in ("stride", "padding", "output_padding", "dilation") and not isinstance(value, str)
        if by_axis and not (isinstance(value, (tuple, list)) and len(value) == axes):
            raise ArchiveError(f"a convolution over {axes} axes has {name}={value!r}.")


def _check_norm(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Torch's op reads, and writes, as many numbers as there are channels, however many there are."""
    x = args[0] if args else None
    channels = x.shape[1] if isinstance(x, Tensor) and x.dim() > 1 else None
    for tensor in (*args[1:5], *kwargs.values()):
        if isinstance(tensor, (Tensor, Unknown)) and getattr(tensor, "shape", None) != (channels,):
            raise ArchiveError(f"a batch norm of {channels} channels has a tensor of another shape.")


def _is_packed(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Tell whether a recurrent op takes the sizes of batches, (data, batch_sizes, hx, params, has_biases, ...)."""
    named = "batch_sizes" in kwargs or ("hx" in kwargs and len(args) > 1) or ("params" in kwargs and len(args) > 2)
    return named or (len(args) > 3 and not isinstance(args[3], bool))


def _check_whole(node: fx.Node, word: str) -> None:
    """Torch reads scales, shifts and sizes of batches as if each lay behind the other, whatever their strides.

    Strides depend on the sizes of the inputs, so that those of the example say nothing: it goes by what makes a tensor.
    """
    names = ("weight", "bias") if word == "native_group_norm" else ("batch_sizes",)
    given = (*node.args[1 : 1 + len(names)], *(node.kwargs.get(name) for name in names))
    for source in given:
        if not isinstance(source, fx.Node) or source.op in ("placeholder", "get_attr"):
            continue
        if word_of(source) != "contiguous":
            raise ArchiveError(f"it reads {source.name} as it lies in memory, which is not contiguous at all sizes.")


def _check_scales(op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Torch reads the pixels that the scales say, which are to be those of the sizes."""
    given = {**dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)), **kwargs}
    x, sizes = next(iter(given.values()), None), given.get("output_size")
    scales = [leaf for name, value in given.items() if name.startswith("scale") for leaf in tree_leaves(value)]
    if not all(scale is None or (isinstance(scale, (int, float)) and 1e-6 < scale < 1e6) for scale in scales):
        raise ArchiveError(f"it resizes by {scales}.")
    if sizes is None or all(scale is None for scale in scales):
        return
    unlike = ArchiveError(f"it resizes to {sizes}, by {scales}, which are not the same.")
    if (
        not isinstance(x, Tensor)
        or not isinstance(sizes, (list, tuple))
        or not len(sizes) == len(scales) == x.dim() - 2
    ):
        raise unlike
    pairs = zip(x.shape[2:], sizes, scales, strict=True)
    if any(scale is not None and abs(old * scale - new) > 1 for old, new, scale in pairs):
        raise unlike


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
    made = given.get("out_dtype", given.get("output_dtype"))
    if made is not None and not (isinstance(made, torch.dtype) and made.is_floating_point):
        raise ArchiveError(f"it gives {made!r}, which is no dtype of floats.")
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
    if "axis" in names:
        _check_channels(given.get("input"), given.get("axis"), scale, zero)
    size = given.get("group_size")
    if size is not None and not is_whole(size, 1):
        raise ArchiveError(f"its group size is {size!r}.")


def _check_channels(x: object, axis: object, scale: object, zero: object) -> None:
    """Torch finds out how many scales there are when it computes, and an engine may go by the weight's channels."""
    if not isinstance(x, Tensor):
        return
    if not is_whole(axis, 0, x.dim() - 1):
        raise ArchiveError(f"it quantizes along the axis {axis!r} of {x.dim()}.")
    for name, numbers in (("scales", scale), ("zero points", zero)):
        if isinstance(numbers, Tensor) and tuple(numbers.shape) != (x.shape[axis],):
            raise ArchiveError(f"it has {name} of the shape {tuple(numbers.shape)} for {x.shape[axis]} channels.")


def region_tensor(region: Region, source: fx.Node) -> Tensor | None:
    """Return the tensor that a get_attr node reads."""
    owner_path, _, name = str(source.target).rpartition(".")
    owner = region.get_submodule(owner_path)
    return owner._parameters.get(name, owner._buffers.get(name))
