"""Linear on float activations and integer weights: torch's packed matmuls for few rows, dequantize for many.

For a few rows (decoding, small batches) the weight's bytes are what costs, and torch's kernels read them as they are;
those compute in bfloat16. For many rows one dequantize is cheap beside the product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.numerics.affine import dequantize
from fxquant.numerics.weights.quantized_weight import QuantizedWeight

MOST_ROWS = 16
_HAS_INT8 = hasattr(torch, "_weight_int8pack_mm")
_HAS_INT4 = hasattr(torch, "_weight_int4pack_mm_for_cpu") and hasattr(torch, "_convert_weight_to_int4pack_for_cpu")
_INT4_GROUPS = (32, 64, 128, 256)
_BLOCKS = (64, 128)  # of rows and columns; torch's packed matmuls read past the end of other sizes


class WeightOnlyLinear(nn.Module):
    """y = x W^T + b with W as integers; `holder` owns them and is not a child, so that the state_dict has them once."""

    holder: QuantizedWeight

    def __init__(self, holder: QuantizedWeight) -> None:
        super().__init__()
        self.__dict__["holder"] = holder
        self.packed: tuple[object, tuple[Tensor, ...]] = (None, ())

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "packed": (None, ())}

    def forward(self, x: Tensor) -> Tensor:
        holder = self.holder
        if not isinstance(x, Tensor) or x.layout != torch.strided or not x.dim():
            return holder.forward(x)  # type: ignore[no-any-return]  # what torch says to it
        rows = x.numel() // max(x.shape[-1], 1)
        product = None
        if rows <= MOST_ROWS and x.is_cpu and not torch.compiler.is_compiling():
            product = self._product(x.reshape(rows, x.shape[-1]))
        if product is None:
            zero = holder.weight_zero_point
            zero = torch.zeros_like(holder.weight_scale, dtype=torch.int32) if zero is None else zero
            weight = dequantize(holder.integers, holder.weight_scale, zero, holder.spec, x.dtype)
            return F.linear(x, weight, holder.dequantized("bias"))
        result = product.to(x.dtype).reshape(*x.shape[:-1], -1)
        return result if holder.held("bias") is None else result.add_(holder.dequantized("bias"))

    def _product(self, x: Tensor) -> Tensor | None:
        spec = self.holder.spec
        if self.holder.weight_zero_point is not None or x.dtype not in (torch.float32, torch.bfloat16):
            return None
        if any(size % block for size, block in zip(self.holder.weight_shape, _BLOCKS, strict=True)):
            return None
        low = x.to(torch.bfloat16)
        if spec.granularity == "per_channel" and spec.axis == 0 and self.holder.spec.dtype == torch.int8 and _HAS_INT8:
            (scale,) = self._constants()
            return torch._weight_int8pack_mm(low, self.holder.integers, scale)
        if spec.granularity == "per_group" and spec.bits == 4 and spec.group_size in _INT4_GROUPS and _HAS_INT4:
            weight, scales = self._constants()
            return torch._weight_int4pack_mm_for_cpu(low, weight, spec.group_size, scales)
        return None

    def _constants(self) -> tuple[Tensor, ...]:
        """Return the scales in bfloat16, with the packed weight for int4; made once."""
        holder = self.holder
        stamp = holder.stamp(), holder.sample("weight_scale")
        if self.packed[0] != stamp:
            scale = holder.weight_scale.to(torch.bfloat16)
            made: tuple[Tensor, ...] = (scale,)
            if holder.spec.granularity == "per_group":
                weight = torch._convert_weight_to_int4pack_for_cpu((holder.integers + 8).to(torch.int32), 1)
                made = weight, torch.stack([scale.t(), torch.zeros_like(scale.t())], -1).contiguous()
            self.packed = (stamp, made)
        return self.packed[1]

    def extra_repr(self) -> str:
        return f"{self.holder.kind}, {self.holder.spec}"
