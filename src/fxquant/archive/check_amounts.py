"""How much a call in a stored graph makes: by numbers that nobody knows before it, and by what it is given at once.

A run without data sees the sizes of what is made, but not what is made of numbers that are values of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.modules.pooling import _MaxUnpoolNd
from torch.utils._pytree import tree_leaves

from fxquant.archive.check_python import Number, Unknown, is_python, leaves_of
from fxquant.archive.language import BOUNDED
from fxquant.capture import guards
from fxquant.errors import ArchiveError
from fxquant.graph import torch_compat
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.region import Region

BY_VALUES = "it takes numbers that are read from the values of a tensor, which may say how large a tensor it makes."
_MOST_OPERANDS = 64
_OF_FEW = ("meshgrid", "linalg_multi_dot", "chain_matmul")  # they take memory by the square of how many they are given


def word_of(node: fx.Node) -> str:
    """Return the word that a node calls, without where it is from."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    return str(target if isinstance(target, str) else getattr(target, "__name__", ""))


def infos_of(node: fx.Node) -> list[TensorInfo]:
    """Return what a file records of the tensors that a node makes."""
    return [leaf for leaf in tree_leaves(node.meta.get("tensor")) if isinstance(leaf, TensorInfo)]


def may_grow(node: fx.Node) -> bool:
    """Tell whether numbers can make what a node computes larger than its tensors."""
    if is_python(node) or getattr(node.target, "__module__", "") == guards.__name__:  # see check_python.py
        return False
    if node.target in torch_compat.QUANTIZE_OPS or node.target in torch_compat.DEQUANTIZE_OPS:
        return False
    word = word_of(node)
    return word not in BOUNDED and word.rstrip("_") not in BOUNDED and not word.startswith("__")


def inverse_stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: object = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """Return a tensor of the shape that torch.istft makes, which itself looks at the values of the window."""
    whole = n_fft + (n_fft // 4 if hop_length is None else hop_length) * (input.shape[-1] - 1)
    size = length if length is not None else whole - n_fft // 2 * 2 * center
    dtype = input.dtype if return_complex else input.dtype.to_real()
    made: Tensor = input.new_empty((*input.shape[:-2], max(whole, size)), dtype=dtype)  # what it adds up on the way
    return made[..., :size]


def check_operands(node: fx.Node, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Raise an ArchiveError for a call that takes memory by the square of how many tensors it is given, if of many."""
    if word_of(node) not in _OF_FEW:
        return
    listed = not any(isinstance(each, (list, tuple, Unknown)) for each in _values_of(node.args, args))
    if len(tree_leaves((args, dict(kwargs)))) > _MOST_OPERANDS or not listed:
        raise ArchiveError(f"it takes more than {_MOST_OPERANDS} tensors, or as many as values say.")


def _values_of(given: tuple[object, ...], values: tuple[object, ...]) -> list[object]:
    """Return the values of arguments that are nodes."""
    return [value for each, value in zip(given, values, strict=True) if isinstance(each, fx.Node)]


def check_module(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Raise an ArchiveError if a module is given tensors where it takes numbers, which may say a size."""
    given: dict[object, object] = dict([*enumerate(args), *kwargs.items()])
    plain: set[object]
    if isinstance(module, Region):
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        plain = {key for at, node in enumerate(inputs) if not infos_of(node) for key in (at, str(node.target))}
    elif isinstance(module, (_MaxUnpoolNd, _ConvTransposeNd)):
        plain = {2, "output_size"} if isinstance(module, _MaxUnpoolNd) else {1, "output_size"}
    else:
        return
    for key in plain & given.keys():
        if any(isinstance(leaf, (Tensor, Number)) for leaf in leaves_of(given[key])):
            raise ArchiveError(f"it gives {type(module).__name__} a tensor in the place of a number.")
