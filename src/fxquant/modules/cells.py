"""One time step of an LSTM, GRU or RNN: a linear on the hidden state, gates in float; and the cells of torch.nn."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import Self

from fxquant.capture.symbolic.wrap import wrap
from fxquant.modules.form import Form, linear_of

State = tuple[Tensor, ...]
_PARTS = {"ih": "ih", "hh": "step.hh"}  # of a cell's tensors, as the stock one names them, and where they are here


@wrap
def lstm_gates(x: Tensor, recurrent: Tensor, c: Tensor) -> State:
    """(h, c): `c' = sigmoid(f) c + sigmoid(i) tanh(g)`, `h = sigmoid(o) tanh(c')`."""
    i, f, g, o = (x + recurrent).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@wrap
def gru_gates(x: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
    """`n = tanh(n_x + sigmoid(r) n_h)`, `h' = (1 - z) n + z h`."""
    r_x, z_x, n_x = x.chunk(3, -1)
    r_h, z_h, n_h = recurrent.chunk(3, -1)
    z = torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return n + z * (h - n)


@wrap
def rnn_gates(x: Tensor, recurrent: Tensor, relu: bool) -> Tensor:
    """`h' = tanh(x + recurrent)`, or relu."""
    return torch.relu(x + recurrent) if relu else torch.tanh(x + recurrent)


class LSTMStep(nn.Module):
    """One time step from (x, h, c) to (h, c); `hr` projects h where the LSTM has a proj_size."""

    def __init__(self, hh: nn.Linear, hr: nn.Linear | None) -> None:
        super().__init__()
        self.hh = hh
        self.hr = hr

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> State:
        h, c = lstm_gates(x, self.hh(h), c)
        return (h, c) if self.hr is None else (self.hr(h), c)


class GRUStep(nn.Module):
    """One time step from (x, h) to (h,)."""

    def __init__(self, hh: nn.Linear) -> None:
        super().__init__()
        self.hh = hh

    def forward(self, x: Tensor, h: Tensor) -> State:
        return (gru_gates(x, self.hh(h), h),)


class RNNStep(nn.Module):
    """One time step from (x, h) to (h,)."""

    def __init__(self, hh: nn.Linear, relu: bool) -> None:
        super().__init__()
        self.hh = hh
        self.relu = relu

    def forward(self, x: Tensor, h: Tensor) -> State:
        return (rnn_gates(x, self.hh(h), self.relu),)


def make_step(module: nn.Module, hh: nn.Linear, hr: nn.Linear | None = None) -> nn.Module:
    """Return the step of a stock recurrent module or cell."""
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return LSTMStep(hh, hr)
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        return GRUStep(hh)
    return RNNStep(hh, relu=getattr(module, "nonlinearity", "tanh") == "relu")


class _Cell(Form):
    """One step with its input linear, for loops that the user writes. It traces."""

    def __init__(self, module: nn.RNNCellBase) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = module.input_size, module.hidden_size, module.bias
        self.ih = linear_of(module.weight_ih, module.bias_ih)
        self.step = make_step(module, linear_of(module.weight_hh, module.bias_hh))
        self.train(module.training)

    @classmethod
    def from_float(cls, module: nn.RNNCellBase) -> Self:
        """From the stock module, whose tensors it shares."""
        return cls(module)

    @staticmethod
    def own_state(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        what, _, part = name.partition("_")
        return {f"{_PARTS[part]}.{what}": tensor} if what in ("weight", "bias") and part in _PARTS else {}

    @property
    def weight_ih(self) -> Tensor:
        """The weight of the input, as the stock cell names it."""
        return self.ih.weight

    @property
    def bias_ih(self) -> Tensor | None:
        """The bias of the input."""
        return self.ih.bias

    @property
    def weight_hh(self) -> Tensor:
        """The weight of the hidden state."""
        return self._hidden.weight

    @property
    def bias_hh(self) -> Tensor | None:
        """The bias of the hidden state."""
        return self._hidden.bias

    @property
    def _hidden(self) -> nn.Linear:
        hidden: nn.Linear = self.step.hh  # type: ignore[assignment]
        return hidden

    def forward(self, input: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None = None) -> object:
        x = self.ih(input)
        if hx is None:
            zeros = torch.zeros_like(x[..., : self.hidden_size])
            hx = (zeros, zeros) if isinstance(self.step, LSTMStep) else zeros
        if isinstance(self.step, LSTMStep):
            return self.step(x, hx[0], hx[1])
        return self.step(x, hx)[0]


class LSTMCell(_Cell):
    """`nn.LSTMCell` of linears that quantize."""

    stands_for = nn.LSTMCell


class GRUCell(_Cell):
    """`nn.GRUCell` of linears that quantize."""

    stands_for = nn.GRUCell


class RNNCell(_Cell):
    """`nn.RNNCell` of linears that quantize."""

    stands_for = nn.RNNCell

    @property
    def nonlinearity(self) -> str:
        """The activation, relu or tanh."""
        return "relu" if isinstance(self.step, RNNStep) and self.step.relu else "tanh"
