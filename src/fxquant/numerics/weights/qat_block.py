"""A weighted op in training: its weight rounded as it will be stored, with the batch norm after it taken in.

    batch statistics      y = bn(op(x, fq(w g) / g, b))          g = gamma / sqrt(running_var + eps), constant here
    running statistics    y = op(x, fq(w g), (b - mean) g + beta)

Both round the weight as conversion does, folded with the running statistics; dividing the weight by g again, and not
the output, keeps the cost at the size of the weight. The second is what the converted model computes.

The block stands at the op's path and has its parameters, so names stay those of the float model. The batch norm stays
at its own path, too; the block only refers to it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fxquant.config.spec import Int32, Spec
from fxquant.graph.worn_class import wear, worn
from fxquant.numerics.learned.straight_through import observed_fake_quantize
from fxquant.numerics.ranges import given_or_own_range
from fxquant.numerics.weights.fold_norm import (
    BatchNorm,
    fold_bias,
    fold_norm,
    norm_gain,
    per_channel,
    scale_channels,
    uses_batch_statistics,
)
from fxquant.numerics.weights.weight_fake_quant import WeightFakeQuant
from fxquant.ops.table import OPS

_TINY = 1e-12  # of a gain that cannot be divided by: gamma is 0 where a residual branch starts switched off


class QatBlock(nn.Module):
    """A conv, transposed conv, linear or embedding that trains with rounded weights. `isinstance` sees the op."""

    op_class: type[nn.Module]
    weight_fq: WeightFakeQuant
    weight: Tensor
    bias: Tensor | None
    norm: BatchNorm | None
    bias_spec: Spec | Int32 | None
    last_gain: Tensor | None = None

    def __init__(
        self,
        op: nn.Module,
        weight_fq: WeightFakeQuant,
        norm: BatchNorm | None = None,
        bias_spec: Spec | Int32 | None = None,
    ) -> None:
        super().__init__()
        for name, value in op.__dict__.items():
            self.__dict__[name] = copy.copy(value) if isinstance(value, dict) else value
        # plain attributes: the norm is registered where the float model has it
        self.__dict__.update(op_class=type(op), norm=norm, bias_spec=bias_spec)
        self.weight_fq = weight_fq.train(op.training)

    @property
    def __class__(self) -> type:
        found: type = worn(self) or self.__dict__.get("op_class", type(self))
        return found

    @__class__.setter
    def __class__(self, cls: type) -> None:
        wear(self, cls, self.op_class)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        if worn(self) is not None:
            return super().__reduce_ex__(protocol)  # that class says what becomes of it
        return _new_block, (), self.__dict__

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        norm = self.norm
        if norm is None:
            return self._run(x, self.weight_fq(self.weight), self._rounded(self._own_bias), *args, **kwargs)
        if not uses_batch_statistics(norm):
            weight, bias = self.folded()
            return self._run(x, self.weight_fq(weight), self._rounded(bias), *args, **kwargs)
        # a checkpointed block runs again inside of backward: by then its first run has moved the statistics
        again = torch._C._current_graph_task_id() != -1 and self.last_gain is not None
        if not again:
            self.__dict__["last_gain"] = self._gain(norm)
        gain = self.last_gain
        assert gain is not None
        weight = self.weight_fq(scale_channels(self, self.weight, gain))
        weight = scale_channels(self, weight, 1.0 / gain)
        with still(norm) if again else contextlib.nullcontext():
            return norm(self._run(x, weight, self._own_bias, *args, **kwargs))  # type: ignore[no-any-return]

    @torch.no_grad()
    def _gain(self, norm: BatchNorm) -> Tensor:
        """By which the weight is multiplied before it is rounded, and divided after; never 0."""
        gain = norm_gain(norm)
        assert norm.running_var is not None
        return torch.where(gain.abs() < _TINY, torch.rsqrt(norm.running_var + norm.eps).to(gain.dtype), gain)

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """(weight, bias) with the batch norm folded in by its running statistics."""
        if self.norm is None:
            return self.weight, self._own_bias
        return fold_norm(self, self.weight, self._own_bias, self.norm)

    @torch.no_grad()
    def merge_norm(self) -> None:
        """Fold the batch norm in for good."""
        weight, bias = self.folded()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if "bias" in self._parameters:
            self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.__dict__["norm"] = None

    @torch.no_grad()
    def read_calibrated(self, state_dict: dict[str, Tensor], prefix: str, prefixes: dict[int, str]) -> None:
        """Read the state of the same op in a calibrated model, where the batch norm is folded: w = w' / g, ...

        The statistics and gamma stay as they are here; `prefixes` are those of all modules by id.
        """
        if f"{prefix}weight" in state_dict:
            self.weight_fq.read_fixed(state_dict[f"{prefix}weight"], state_dict, f"{prefix}weight_fq.")
        for name, tensor in self.weight_fq.state_dict().items():
            state_dict.setdefault(f"{prefix}weight_fq.{name}", tensor)
        norm = self.norm
        at = prefixes.get(id(norm), "")
        if norm is None or f"{at}running_var" in state_dict or f"{prefix}weight" not in state_dict:
            return
        gain, own = norm_gain(norm), self._own_bias
        alive = gain.abs() >= _TINY
        inverse = 1.0 / torch.where(alive, gain, 1.0)
        weight = scale_channels(self, state_dict[f"{prefix}weight"], inverse)
        state_dict[f"{prefix}weight"] = torch.where(per_channel(alive, self), weight, self.weight)
        folded = state_dict.pop(f"{prefix}bias")
        if own is not None:
            state_dict[f"{prefix}bias"] = own.detach().clone()
        for name, tensor in norm.state_dict().items():
            state_dict[at + name] = tensor.clone()
        rest = folded - fold_bias(own, norm, gain)
        if norm.bias is not None:
            state_dict[f"{at}bias"] += rest
        else:
            state_dict[f"{at}running_mean"] -= torch.where(alive, rest * inverse, 0.0)

    def plain(self) -> nn.Module:
        """Return the op without the block: of its own class, with the same tensors."""
        op = self.op_class.__new__(self.op_class)
        own = ("op_class", "norm", "bias_spec", "last_gain", "_modules")
        op.__dict__.update({key: value for key, value in self.__dict__.items() if key not in own})
        op.__dict__["_modules"] = {name: child for name, child in self._modules.items() if name != "weight_fq"}
        return op

    @property
    def _own_bias(self) -> Tensor | None:
        return self._parameters.get("bias")

    def _rounded(self, bias: Tensor | None) -> Tensor | None:
        if bias is None or not isinstance(self.bias_spec, Spec):
            return bias  # steps of int32 are far below those of the output
        return observed_fake_quantize(bias, *given_or_own_range(bias.detach(), self.bias_spec), self.bias_spec)

    def _run(self, x: Tensor, weight: Tensor, bias: Tensor | None, *args: object, **kwargs: object) -> Tensor:
        cls: Any = self.op_class
        settings: Any = self
        if isinstance(self, nn.Embedding):
            flags = (settings.padding_idx, None, settings.norm_type, settings.scale_grad_by_freq, settings.sparse)
            return F.embedding(x, weight, *flags)
        if isinstance(self, nn.EmbeddingBag):
            return functional_call(self.plain(), {"weight": weight}, (x, *args), kwargs)
        if isinstance(self, nn.modules.conv._ConvTransposeNd):
            size = args[0] if args else kwargs.get("output_size")
            dims, geometry = len(settings.kernel_size), (settings.stride, settings.padding, settings.kernel_size)
            padding = cls._output_padding(self, x, size, *geometry, dims, settings.dilation)
            functional: Any = _functional(cls)
            return functional(x, weight, bias, *geometry[:2], padding, settings.groups, settings.dilation)  # type: ignore[no-any-return]
        if isinstance(self, nn.modules.conv._ConvNd):
            return cls._conv_forward(self, x, weight, bias)  # type: ignore[no-any-return]
        return F.linear(x, weight, bias)

    def extra_repr(self) -> str:
        shape, merged = tuple(self.weight.shape), "" if self.norm is None else f", {type(self.norm).__name__}"
        return f"{self.op_class.__name__}, {shape}{merged}"


@contextlib.contextmanager
def still(norm: BatchNorm) -> Iterator[None]:
    """Let a batch norm see its batch again without counting it."""
    momentum, norm.momentum = norm.momentum, 0.0
    try:
        yield
    finally:
        norm.momentum = momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.sub_(1)


def _functional(cls: type[nn.Module]) -> object:
    op = OPS.of(cls)
    assert op is not None and op.functional is not None
    return op.functional


def _new_block() -> QatBlock:
    return QatBlock.__new__(QatBlock)
