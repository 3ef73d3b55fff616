"""The transformer layers of torch.nn without their fast path and its checks, so that they trace.

Their attention becomes `MultiheadAttention` from here; all else is adopted as it is, so the other state_dict keys stay.
`is_causal` is a hint that a mask is the causal one; the mask itself is what counts here.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from fxquant.capture.symbolic.wrap import wrap
from fxquant.modules.attention import MultiheadAttention
from fxquant.modules.form import Form


class _Adopted(Form):
    """Takes over the state, settings and children of a stock module; attention and layers in their quantizable form."""

    def __getattr__(self, name: str) -> Any:  # children are known by name only
        return super().__getattr__(name)

    @classmethod
    def from_float(cls, module: nn.Module) -> Self:
        """From the stock module, whose tensors it shares."""
        new = cls()
        for key, value in module.__dict__.items():
            new.__dict__[key] = copy.copy(value) if isinstance(value, dict) else value
        for name, child in module._modules.items():
            new._modules[name] = _quantizable(child) if child is not None else None
        return new


def _quantizable(module: nn.Module) -> nn.Module:
    if type(module) is nn.ModuleList:
        return nn.ModuleList(_quantizable(child) for child in module)
    forms = (TransformerEncoderLayer, TransformerDecoderLayer, TransformerEncoder, TransformerDecoder)
    if type(module) is nn.MultiheadAttention:
        return MultiheadAttention.from_float(module)
    return next((form.from_float(module) for form in forms if form.stands_for is type(module)), module)


class TransformerEncoderLayer(_Adopted):
    """`nn.TransformerEncoderLayer` of parts that quantize."""

    stands_for = nn.TransformerEncoderLayer
    norm_first: bool
    activation: Any

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), src_mask, src_key_padding_mask)
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self._attend(x, src_mask, src_key_padding_mask))
        result: Tensor = self.norm2(x + self._feed(x))
        return result

    def _attend(self, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
        mixed = self.self_attn(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]
        result: Tensor = self.dropout1(mixed)
        return result

    def _feed(self, x: Tensor) -> Tensor:
        result: Tensor = self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return result


class TransformerDecoderLayer(_Adopted):
    """`nn.TransformerDecoderLayer` of parts that quantize."""

    stands_for = nn.TransformerDecoderLayer
    norm_first: bool
    activation: Any

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        x = tgt
        if self.norm_first:
            x = x + self._attend(self.norm1(x), tgt_mask, tgt_key_padding_mask)
            x = x + self._look(self.norm2(x), memory, memory_mask, memory_key_padding_mask)
            return x + self._feed(self.norm3(x))
        x = self.norm1(x + self._attend(x, tgt_mask, tgt_key_padding_mask))
        x = self.norm2(x + self._look(x, memory, memory_mask, memory_key_padding_mask))
        result: Tensor = self.norm3(x + self._feed(x))
        return result

    def _attend(self, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
        mixed = self.self_attn(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]
        result: Tensor = self.dropout1(mixed)
        return result

    def _look(self, x: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
        mixed = self.multihead_attn(x, memory, memory, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]
        result: Tensor = self.dropout2(mixed)
        return result

    def _feed(self, x: Tensor) -> Tensor:
        result: Tensor = self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return result


@wrap
def clear_padding(x: Tensor, padding: Tensor) -> Tensor:
    """Zeros at padded places, as the stock encoder gives them without gradients (it goes through nested tensors)."""
    padded = padding if padding.dtype == torch.bool else padding == float("-inf")
    if torch.is_grad_enabled() or padded.dim() != 2:
        return x
    left_aligned = (padded[:, 1:] >= padded[:, :-1]).all()  # stays a tensor: a file holds no code that reads values
    return x.masked_fill((padded & left_aligned).unsqueeze(-1), 0.0)


class TransformerEncoder(_Adopted):
    """`nn.TransformerEncoder` of parts that quantize."""

    stands_for = nn.TransformerEncoder
    layers: nn.ModuleList
    norm: nn.Module | None
    use_nested_tensor: bool

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        if src_key_padding_mask is not None and mask is None and self.use_nested_tensor and not self.training:
            x = clear_padding(x, src_key_padding_mask)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(_Adopted):
    """`nn.TransformerDecoder` of parts that quantize."""

    stands_for = nn.TransformerDecoder
    layers: nn.ModuleList
    norm: nn.Module | None

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        x = tgt
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
            )
        return x if self.norm is None else self.norm(x)


class Transformer(_Adopted):
    """`nn.Transformer` of parts that quantize."""

    stands_for = nn.Transformer

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask)
        result: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )
        return result
