"""Multi-head attention as linears and products that a graph can hold.

    softmax(q k^T / sqrt(d) + mask) v        q, k, v = three linears, then heads; a linear at the end

No line depends on the rank of its inputs, so that it traces and still takes batched and unbatched ones, as
`nn.MultiheadAttention` does, whose arguments and results it has. Its state_dict has `q_proj.weight`, `k_proj.weight`
and `v_proj.weight` instead of `in_proj_weight`, and the same for biases. It loads both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from fxquant.capture.symbolic.wrap import wrap
from fxquant.modules.form import Form, linear_of

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


@wrap
def join_masks(
    query: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int, extra: int
) -> Tensor:
    """One float mask that broadcasts over (batch, heads, queries, keys), with `extra` keys at the end left open.

    The query is (batch, heads, queries, size), or without the batch. A mask of booleans masks where it is True.
    """
    parts = []
    if attn_mask is not None:
        mask = _as_float(attn_mask, query.dtype)
        if mask.dim() == 3 and query.dim() == 4:
            mask = mask.unflatten(0, (-1, heads))
        parts.append(mask)
    if key_padding_mask is not None:
        parts.append(_as_float(key_padding_mask, query.dtype).unsqueeze(-2).unsqueeze(-2))
    joined = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return F.pad(joined, (0, extra)) if extra else joined


def _as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -math.inf)
    return mask.to(dtype)


class MultiheadAttention(Form):
    """`nn.MultiheadAttention` of linears that quantize. Made by `from_float`."""

    stands_for = nn.MultiheadAttention

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = module.embed_dim, module.num_heads, module.head_dim
        self.kdim, self.vdim = module.kdim, module.vdim
        self.batch_first, self.add_zero_attn = module.batch_first, module.add_zero_attn
        weights: tuple[Tensor, ...]
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = module.in_proj_bias.chunk(3) if module.in_proj_bias is not None else (None,) * 3
        self.q_proj, self.k_proj, self.v_proj = (linear_of(w, b) for w, b in zip(weights, biases, strict=True))
        self.out_proj = linear_of(module.out_proj.weight, module.out_proj.bias)
        self.bias_k, self.bias_v = module.bias_k, module.bias_v
        self.attention_dropout = nn.Dropout(module.dropout)
        self.dropout = float(module.dropout)
        self.train(module.training)

    @classmethod
    def from_float(cls, module: nn.MultiheadAttention) -> Self:
        """From the stock module, whose tensors it shares."""
        return cls(module)

    @staticmethod
    def own_state(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        if name in ("in_proj_weight", "in_proj_bias"):
            what = name.removeprefix("in_proj_")
            return {f"{part}.{what}": chunk for part, chunk in zip(_PROJECTIONS, tensor.chunk(3), strict=True)}
        part = name.removesuffix("_weight")
        return {f"{part}.weight": tensor} if part in _PROJECTIONS and part != name else {}

    @property
    def _qkv_same_embed_dim(self) -> bool:
        return bool(self.embed_dim == self.kdim == self.vdim)

    @property
    def in_proj_weight(self) -> Tensor | None:
        """The three weights in one, as the stock module has them where all inputs are of one size."""
        weights = (self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)
        return torch.cat(weights) if self._qkv_same_embed_dim else None

    @property
    def in_proj_bias(self) -> Tensor | None:
        """The three biases in one."""
        biases = (self.q_proj.bias, self.k_proj.bias, self.v_proj.bias)
        return None if biases[0] is None else torch.cat(biases)

    @property
    def q_proj_weight(self) -> Tensor | None:
        """The weight of the query, where the inputs are of different sizes."""
        return None if self._qkv_same_embed_dim else self.q_proj.weight

    @property
    def k_proj_weight(self) -> Tensor | None:
        """The weight of the key."""
        return None if self._qkv_same_embed_dim else self.k_proj.weight

    @property
    def v_proj_weight(self) -> Tensor | None:
        """The weight of the value."""
        return None if self._qkv_same_embed_dim else self.v_proj.weight

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if not self.batch_first:  # (time, batch, size) -> (batch, time, size); (time, size) stays as it is
            q, k, v = q.transpose(0, -2), k.transpose(0, -2), v.transpose(0, -2)
        k, v, extra = self._extend(k, v)
        q, k, v = self._split(q), self._split(k), self._split(v)
        mask = None
        if attn_mask is not None or key_padding_mask is not None:
            mask = join_masks(q, attn_mask, key_padding_mask, self.num_heads, extra)
        weights: Tensor | None = None
        if need_weights or (self.dropout and self.training):
            scores = torch.matmul(q * (1.0 / math.sqrt(self.head_dim)), k.transpose(-2, -1))
            scores = scores if mask is None else scores + mask
            weights = self.attention_dropout(torch.softmax(scores, -1))
            mixed = torch.matmul(weights, v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed = mixed.transpose(-3, -2).flatten(-2)
        if not self.batch_first:
            mixed = mixed.transpose(0, -2)
        output = self.out_proj(mixed)
        if not need_weights or weights is None:
            return output, None
        return output, weights.mean(-3) if average_attn_weights else weights

    def _split(self, x: Tensor) -> Tensor:
        """(..., time, size) -> (..., heads, time, size of a head)."""
        heads: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim))
        return heads.transpose(-3, -2)

    def _extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the keys and values that the module adds itself: `bias_k` and `bias_v`, and zeros."""
        extra = 0
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat((k, self.bias_k[0].expand_as(k[..., :1, :])), -2)
            v = torch.cat((v, self.bias_v[0].expand_as(v[..., :1, :])), -2)
            extra += 1
        if self.add_zero_attn:
            k = torch.cat((k, torch.zeros_like(k[..., :1, :])), -2)
            v = torch.cat((v, torch.zeros_like(v[..., :1, :])), -2)
            extra += 1
        return k, v, extra

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"
