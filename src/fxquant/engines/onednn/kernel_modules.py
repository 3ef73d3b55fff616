"""torch's oneDNN int8 kernels as modules: integer weights, packed once, fused post-ops, int8 or float out.

A kernel takes its integers from the `QuantizedWeight` at the op's own path and packs them on the first call. The packed
copy belongs to this process: it is dropped when the module is copied or pickled, and made again after.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import lt
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.engines import layout
from fxquant.engines.onednn.compiled import qconv, qlinear
from fxquant.engines.onednn.kernels import Grid
from fxquant.engines.onednn.pack import pack_conv, pack_linear
from fxquant.engines.onednn.pairs import halves, is_wide, may_overflow, overflows, twice
from fxquant.engines.onednn.tape import recording
from fxquant.engines.onednn.traced import call_traced
from fxquant.errors import InputError, on_meta
from fxquant.graph import torch_compat
from fxquant.numerics.weights.quantized_weight import QuantizedWeight


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """A unary op that the kernel applies before it writes, in oneDNN's vocabulary."""

    name: str = "none"
    args: tuple[float, ...] = ()
    algorithm: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What the kernel writes: integers on a grid, or float."""

    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    zero_point: int = 0


# whether the weight is in halves; the arguments of a call before the second tensor, and after
Packed = tuple[bool, tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulate:
    """A second tensor that is added: integers on a grid, or float if there is none.

    A sum of integers is written over the tensor, so that is copied first if it is still needed. `first` says that it is
    the first of the two, whose layout the float model's sum would have.
    """

    grid: Grid | None
    copy: bool = False
    first: bool = False


class Kernels(nn.Module):
    """The kernels of a region. They are plain attributes besides: one is found in a tenth of the time."""

    def install(self, name: str, kernel: nn.Module) -> str:
        """Take a kernel in, under this name or one like it; the name."""
        while hasattr(self, name):
            name += "_"
        self.add_module(name, kernel)
        self.__dict__[name] = kernel
        return name


class Kernel(nn.Module):
    """Holds what every call needs. `holder` is not a child, so that the weight stays in one place of the state_dict.

    `most`: the greatest integer of an input, for products that are summed in pairs (pairs.py); 0 where none are.
    """

    holder: QuantizedWeight
    rank = 0  # dimensions of a batch, if it must be one
    axis = 1  # of the channels
    groups = 1

    def __init__(
        self,
        holder: QuantizedWeight,
        x_grid: Grid | None,
        output: Output,
        tail: Tail,
        accumulate: Accumulate | None,
        *,
        most: int,
    ) -> None:
        super().__init__()
        self.__dict__["holder"] = holder
        self.has_bias = holder.dequantized("bias") is not None  # in the graph: one that comes later is not in it
        self.x_grid = x_grid
        self.most = most
        self.output = output
        self.tail = tail
        self.accumulate = accumulate
        self.stamp: object = None  # of the weight that was packed
        self.packed: Packed | None = None

    def __call__(self, *args: Any) -> Tensor:
        """Without looking for hooks: a model makes dozens of these calls, of some ten microseconds each."""
        if not args[0].is_cpu:  # torch's kernels do not look
            raise InputError(f"engine='onednn' runs on the CPU, and is given a tensor on {args[0].device}.")
        if args[0].dim() == self.rank - 1:  # one sample, without a batch
            batched = (arg.unsqueeze(0) if isinstance(arg, Tensor) and arg.dim() < self.rank else arg for arg in args)
            return self(*batched).squeeze(0)
        if torch_compat.is_traced():
            return self._traced(*args)
        try:
            if not torch.compiler.is_compiling() and self._is_odd(*args):
                return self._in_float(*args)
            return self.forward(*args)  # type: ignore[no-any-return]
        except (RuntimeError, IndexError) as error:
            if any(each.is_meta for each in self.holder.buffers()):
                raise on_meta(f"the weight of a {self.holder.kind}") from error
            shapes = " and ".join(str(tuple(arg.shape)) for arg in args if isinstance(arg, Tensor))
            weight = f"{self.holder.kind} with a weight of {self.holder.weight_shape}"
            raise RuntimeError(f"{weight} cannot take an input of {shapes}. {error}") from error

    def _is_odd(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> bool:
        """Tell whether an input has no elements, of which torch's kernels make other shapes, or a range without end."""
        return not x.numel() or (grid is not None and not isinstance(grid[0], Tensor) and grid[0] != grid[0])

    def _in_float(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        """Return what the float op gives then: a shape, an error, or nan all over, which an int8 kernel would lose."""
        made: Tensor = self.holder.forward(x.float() * math.nan)
        return (made if other is None else made + other.float()).to(self.output.dtype)

    def _traced(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        """Run the call inside torch.jit.trace. A second tensor is copied: what is summed up may be an input there."""
        given = [x] + ([] if other is None else [other]) + ([] if grid is None else list(grid))
        state = [*self.holder.parameters(), *self.holder.buffers()]

        def call(*tensors: Tensor) -> Tensor:
            second = tensors[1].clone() if other is not None else None
            return self._op(x, second, grid)

        return call_traced(call, [*given, *state], f"a {self.holder.kind}")  # type: ignore[list-item]

    def _op(self, x: Tensor, other: Tensor | None, grid: Grid | None) -> Tensor:
        """Return what a trace takes as one call: nothing in it may depend on the size of the batch."""
        return self.forward(x, other, grid)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "packed": None, "stamp": None}

    def __deepcopy__(self, memo: dict[int, object]) -> Kernel:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return made

    def _arguments(self, x: Tensor, grid: Grid | None) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """Return the arguments of a call: those before the second tensor, those after.

        The weight is packed for inputs of the first shape that comes; the layout hardly depends on it, and the op
        changes one that it cannot use. `grid` is that of the input where it is found at run time.
        """
        packed, stamp = self.packed, self.holder.stamp()
        if recording():
            packed = self._pack(x)
        elif packed is None or self.stamp != stamp:
            with torch_compat.unseen():
                packed = self.packed = self._pack(x)
            self.stamp = stamp
        in_halves, head, rest = packed
        return (twice(x, self.axis, self.groups) if in_halves else x, *(grid or ()), *head), rest

    def _pack(self, x: Tensor) -> Packed:
        in_halves = self._in_halves()
        shape = (twice(x, self.axis, self.groups) if in_halves else x).shape
        return (in_halves, *self._packed(tuple(shape), in_halves))

    def _packed(self, shape: tuple[int, ...], in_halves: bool) -> tuple[tuple[object, ...], tuple[object, ...]]:
        raise AssertionError("a kernel packs its own weight")

    def _in_halves(self) -> bool:
        """Tell whether the weight is taken apart: here, or in a trace, which may go to any CPU."""
        spec = self.holder.spec
        if recording() and may_overflow(self.most, max(-spec.quant_min, spec.quant_max)):
            return True
        if not overflows() and not recording():
            return False
        with torch_compat.unseen():
            return is_wide(self.most, self.holder.integers)

    def _head(self, packed: Tensor) -> tuple[object, ...]:
        scale = self._scale()
        return (*(self.x_grid or ()), packed, scale, torch.zeros(scale.numel(), dtype=torch.int32, device=scale.device))

    def _scale(self) -> Tensor:
        """Of the weight, one number per output channel."""
        return self.holder.weight_scale.expand(self.holder.weight_shape[0]).contiguous()

    def _bias(self) -> Tensor | None:
        bias: Tensor | None = self.holder.dequantized("bias") if self.has_bias else None
        return bias

    def _zero_point(self) -> int:
        """Of the input; 0 if it is found at run time, as it mostly is after a relu."""
        return 0 if self.x_grid is None else self.x_grid[1]

    def _end(self) -> tuple[object, ...]:
        output, tail, accumulate = self.output, self.tail, self.accumulate
        end: tuple[Any, ...] = (output.scale, output.zero_point, output.dtype)
        if accumulate is not None:
            end += (*(accumulate.grid or (1.0, 0)), self._sum_name(), 1.0)
        return (*end, tail.name, tail.args, tail.algorithm)

    def _sum_name(self) -> str:
        """A float tensor is added; integers are summed up in place."""
        return "add" if self.accumulate is None or self.accumulate.grid is None else "sum"

    def _grids(self, grid: Grid | None) -> list[float]:
        """Of the input, the output and the second tensor, for the ops in compiled.py."""
        second = (self.accumulate.grid if self.accumulate is not None else None) or (1.0, 0)
        first = self.x_grid or grid or (1.0, 0)
        return [*first, self.output.scale, float(self.output.zero_point), *second]

    def _tail(self) -> tuple[str, list[float], str]:
        return self.tail.name, list(self.tail.args), self.tail.algorithm

    def extra_repr(self) -> str:
        kind = self.holder.kind
        parts = [str(kind), f"out={str(self.output.dtype).removeprefix('torch.')}"]
        parts += [f"tail={self.tail.name}"] if self.tail.name != "none" else []
        parts += ["accumulate"] if self.accumulate is not None else []
        return ", ".join(parts)


class ConvKernel(Kernel):
    """`onednn.qconv_pointwise`: convolution, an optional residual sum, an optional relu, and requantization."""

    def __init__(
        self,
        holder: QuantizedWeight,
        x_grid: Grid | None,
        output: Output,
        tail: Tail,
        accumulate: Accumulate | None,
        geometry: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
        x_scales: Tensor | None = None,
        *,
        most: int,
    ) -> None:
        # torch's depthwise kernels sum one product at a time
        super().__init__(holder, x_grid, output, tail, accumulate, most=most if holder.weight_shape[1] > 1 else 0)
        self.x_scales = x_scales  # of the channels of a depthwise convolution's input
        stride, padding, dilation, groups = geometry
        self.geometry = (list(stride), list(padding), list(dilation), groups)
        self.rank = len(stride) + 2
        self.groups = groups
        spans = (d * (k - 1) + 1 for d, k in zip(dilation, holder.weight_shape[2:], strict=True))
        self.least = [span - 2 * pad for span, pad in zip(spans, padding, strict=True)]  # sizes of an image

    def _scale(self) -> Tensor:
        return super()._scale() if self.x_scales is None else super()._scale() * self.x_scales

    def _packed(self, shape: tuple[int, ...], in_halves: bool) -> tuple[tuple[object, ...], tuple[object, ...]]:
        holder = self.holder
        weight = halves(holder.integers) if in_halves else holder.integers
        packed = pack_conv(weight, self._scale(), self._zero_point(), self.geometry, shape)
        return self._head(packed), (self._bias(), *self.geometry, *self._end())

    def forward(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        if torch.compiler.is_compiling():
            end = (*self.geometry, self._grids(grid), self.output.dtype, *self._tail())
            holder = self.holder
            result = qconv(x, holder.integers, self._scale(), other, self._bias(), *end, self.most)
            assert isinstance(result, Tensor)
            return result
        if x.dim() == self.rank and any(map(lt, x.shape[2:], self.least)):  # the kernel would make something up
            raise RuntimeError("the padded image is smaller than the kernel")
        head, rest = self._arguments(x, grid)
        if other is None:
            return overload(torch.ops.onednn.qconv_pointwise, grid)(*head, *rest)
        assert self.accumulate is not None
        if other.shape[0] != x.shape[0]:  # the same for every sample
            other = other.expand(x.shape[0], *other.shape[1:]).clone(memory_format=torch.channels_last)
        elif self.accumulate.copy or not other.is_contiguous(memory_format=torch.channels_last):
            other = other.clone(memory_format=torch.channels_last)
        return torch.ops.onednn.qconv2d_pointwise.binary(*head, other, *rest)  # type: ignore[no-any-return]


class LinearKernel(Kernel):
    """`onednn.qlinear_pointwise`: product, an optional sum with a second tensor, an optional unary op."""

    axis = -1

    def _packed(self, shape: tuple[int, ...], in_halves: bool) -> tuple[tuple[object, ...], tuple[object, ...]]:
        weight = halves(self.holder.integers) if in_halves else self.holder.integers
        packed = pack_linear(weight, shape)
        return self._head(packed), (self._bias(), *self._end())

    def forward(self, x: Tensor, other: Tensor | None = None, grid: Grid | None = None) -> Tensor:
        if other is not None and other.is_floating_point():
            other = other.float()  # the kernel adds no float16
        if torch.compiler.is_compiling():
            if other is not None:
                other = other.expand(*x.shape[:-1], other.shape[-1]).contiguous()
            end = (self.output.dtype, self._sum_name(), *self._tail())
            holder = self.holder
            result = qlinear(x, holder.integers, self._scale(), other, self._bias(), self._grids(grid), *end, self.most)
            assert isinstance(result, Tensor)
            return result
        head, rest = self._arguments(x, grid)
        if other is None:
            return overload(torch.ops.onednn.qlinear_pointwise, grid)(*head, *rest)
        assert self.accumulate is not None
        given = other
        if other.shape[:-1] != x.shape[:-1]:  # the same for every sample
            other = other.expand(*x.shape[:-1], other.shape[-1]).clone(memory_format=torch.contiguous_format)
        elif self.accumulate.copy or not other.is_contiguous():
            other = other.clone(memory_format=torch.contiguous_format)
        op = torch.ops.onednn.qlinear_pointwise
        binary = op.binary_tensor if _on_tensors(grid) else op.binary
        made: Tensor = binary(*head, other, *rest)
        if self.accumulate.first and not given.is_contiguous():
            return layout.restored(made, layout.after_each([given, False], [given, made], made))
        return made


def _on_tensors(grid: Grid | None) -> bool:
    """Tell whether the grid of the input is made of tensors; see `quantize_dynamic`."""
    return grid is not None and isinstance(grid[0], Tensor)


def overload(op: torch._ops.OpOverloadPacket[..., Tensor], grid: Grid | None) -> Callable[..., Tensor]:
    """Return the form of an op that takes the input's grid as it is given."""
    return op.tensor if _on_tensors(grid) else op.default
