"""LSTM, GRU and RNN as linears and a time loop.

    x_t   = W_ih input_t + b_ih              one int8 linear over all time steps at once
    h_t   = gates(x_t, W_hh h_(t-1) + b_hh)  one int8 linear per step, gates in float

The loop is Python (the class is wrapped), so any sequence length goes, and packed sequences too. Under torch.export it
is one scan, so that a graph does not grow with the sequence. The linears are in regions of their own. Arguments and
results are those of `nn.LSTM`, `nn.GRU` and `nn.RNN`. The state_dict has other
keys: `layers.0.0.ih.weight` for `weight_ih_l0`, `layers.0.1.step.hh.weight` for `weight_hh_l0_reverse`. It loads both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import Self

from fxquant.capture.symbolic.wrap import wrap
from fxquant.graph import torch_compat
from fxquant.graph.scan import multiplies_floats, runs_step_by_step, scan_all
from fxquant.modules.cells import RNNStep, State, make_step
from fxquant.modules.form import Form, linear_of


class Direction(nn.Module):
    """One direction of one layer: the input linear and the step."""

    def __init__(self, ih: nn.Linear, step: nn.Module) -> None:
        super().__init__()
        self.ih = ih
        self.step = step


_TENSOR = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d+)(_reverse)?")  # as stock modules name their parameters


@wrap
class _Recurrent(Form):
    """The loop over layers, directions and time. Made by `from_float`."""

    num_states: ClassVar[int] = 1

    def __init__(self, module: nn.RNNBase) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = module.input_size, module.hidden_size, module.num_layers
        self.batch_first, self.bidirectional = module.batch_first, module.bidirectional
        self.dropout, self.proj_size, self.bias = float(module.dropout), module.proj_size, module.bias
        ends = ("", "_reverse") if module.bidirectional else ("",)
        self.layers = nn.ModuleList(
            nn.ModuleList(_direction(module, f"l{layer}{end}") for end in ends) for layer in range(module.num_layers)
        )
        self.train(module.training)

    @classmethod
    def from_float(cls, module: nn.RNNBase) -> Self:
        """From the stock module, whose tensors it shares."""
        return cls(module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            stock = _TENSOR.fullmatch(name)
            if stock is None:
                raise
            return self._stock_tensor(name, *stock.groups())

    def _stock_tensor(self, name: str, what: str, part: str, layer: str, reverse: str | None) -> object:
        directions: Any = self.layers[int(layer)] if int(layer) < self.num_layers else ()
        direction = directions[bool(reverse)] if bool(reverse) < len(directions) else None
        linear = None if direction is None else direction.ih if part == "ih" else getattr(direction.step, part, None)
        tensor = None if linear is None else getattr(linear, what)
        if tensor is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return tensor

    @staticmethod
    def own_state(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        stock = _TENSOR.fullmatch(name)
        if stock is None:
            return {}
        what, part, layer, reverse = stock.groups()
        path = part if part == "ih" else f"step.{part}"
        return {f"layers.{layer}.{int(reverse is not None)}.{path}.{what}": tensor}

    @property
    def all_weights(self) -> list[list[object]]:
        """The tensors of each direction of each layer, as the stock module lists them."""
        parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()))
        parts = (*parts, *(("weight_hr",) if self.proj_size else ()))
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [[getattr(self, f"{p}_l{n}{end}") for p in parts] for n in range(self.num_layers) for end in ends]

    def flatten_parameters(self) -> None:
        """Do nothing: the linears have their weights as they are."""

    def forward(self, input: Tensor | PackedSequence, hx: object = None) -> Any:
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        x = x.transpose(0, 1) if self.batch_first and batched else x
        given = self._given(hx)
        if given is not None and not batched:
            given = tuple(state.unsqueeze(1) for state in given)
        x, states = self._run(x, None, given)
        x = x.transpose(0, 1) if self.batch_first and batched else x
        if not batched:
            x, states = x.squeeze(1), tuple(state.squeeze(1) for state in states)
        return x, self._result(states)

    def _forward_packed(self, packed: PackedSequence, hx: object) -> object:
        """A packed sequence holds the steps one after the other; a step holds the sequences that still go on."""
        given = self._given(hx)
        if given is not None and packed.sorted_indices is not None:
            given = tuple(state.index_select(1, packed.sorted_indices) for state in given)
        data, states = self._run(packed.data, packed.batch_sizes.tolist(), given)
        if packed.unsorted_indices is not None:
            states = tuple(state.index_select(1, packed.unsorted_indices) for state in states)
        output = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return output, self._result(states)

    def remark(self) -> str:
        """Return what `explain` says of a converted layer, if anything."""
        steps = [part.step for part in self.modules() if isinstance(part, Direction)]
        if any(map(runs_step_by_step, steps)):
            return "runs step by step here, slower than float. engine='native' runs all steps in one call."
        if any(map(multiplies_floats, steps)):
            return (
                "multiplies floats: from about 16 sequences at once on, that is no faster, or a little slower than "
                'float. mode="dynamic" is faster.'
            )
        return ""

    def _given(self, hx: Any) -> State | None:
        if hx is None:
            return None
        return (hx,) if self.num_states == 1 else tuple(hx)

    def _result(self, states: State) -> object:
        return states[0] if self.num_states == 1 else states

    def _run(self, x: Tensor, sizes: list[int] | None, given: State | None) -> tuple[Tensor, State]:
        """All layers; `sizes` are the batch sizes of a packed sequence. States are stacked over layers, directions."""
        batch = sizes[0] if sizes is not None else x.shape[1]
        finals: list[State] = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, nn.ModuleList)
            outputs = []
            for backwards, direction in enumerate(layer):
                assert isinstance(direction, Direction)
                state = self._zeros(x, batch) if given is None else tuple(s[len(finals)] for s in given)
                output, final = _scan(direction, x, sizes, state, bool(backwards))
                outputs.append(output)
                finals.append(final)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if self.dropout and self.training and number + 1 < self.num_layers:
                x = F.dropout(x, self.dropout)
        return x, tuple(torch.stack(states) for states in zip(*finals, strict=True))

    def _zeros(self, x: Tensor, batch: int) -> State:
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: self.num_states]
        return tuple(x.new_zeros(batch, size) for size in sizes)


def _scan(
    direction: Direction, x: Tensor, sizes: Sequence[int] | None, state: State, backwards: bool
) -> tuple[Tensor, State]:
    """One direction over all time steps: (outputs in the form of `x`, final state)."""
    # in the order of steps, before it has the size of all gates
    projected = direction.ih(x if torch.compiler.is_exporting() else x.contiguous())
    if sizes is None and torch.compiler.is_exporting() and torch_compat.has_scan():
        return _scan_in_graph(direction.step, projected, state, backwards)
    if sizes is None and (at_once := scan_all(direction.step, projected, state, backwards)) is not None:
        return at_once
    steps = projected.unbind(0) if sizes is None else projected.split(list(sizes))
    outputs: list[Tensor] = []
    for step in reversed(steps) if backwards else steps:
        rows = step.shape[0]
        if rows == state[0].shape[0]:
            state = direction.step(step, *state)
        else:  # the other sequences have ended, or have not begun yet
            new = direction.step(step, *(s[:rows] for s in state))
            state = tuple(torch.cat((n, s[rows:])) for n, s in zip(new, state, strict=True))
        outputs.append(state[0][:rows])
    if backwards:
        outputs.reverse()
    return torch.stack(outputs) if sizes is None else torch.cat(outputs), state


def _scan_in_graph(step: nn.Module, projected: Tensor, state: State, backwards: bool) -> tuple[Tensor, State]:
    """Do the same as one op of the graph that is exported, for any number of steps."""

    def combine(carried: State, x: Tensor) -> tuple[State, Tensor]:
        new = tuple(step(x, *carried))
        return new, new[0].clone()

    final, outputs = torch_compat.scan(combine, state, projected, reverse=backwards)
    return outputs, tuple(final)


def _direction(module: nn.RNNBase, name: str) -> Direction:
    def linear(part: str, bias: bool = True) -> nn.Linear:
        tensor = getattr(module, f"bias_{part}_{name}") if bias and module.bias else None
        return linear_of(getattr(module, f"weight_{part}_{name}"), tensor)

    hr = linear("hr", bias=False) if module.proj_size else None
    return Direction(linear("ih"), make_step(module, linear("hh"), hr))


class LSTM(_Recurrent):
    """`nn.LSTM` of linears that quantize."""

    stands_for = nn.LSTM
    mode: ClassVar[str] = "LSTM"
    num_states = 2


class GRU(_Recurrent):
    """`nn.GRU` of linears that quantize."""

    stands_for = nn.GRU
    mode: ClassVar[str] = "GRU"


class RNN(_Recurrent):
    """`nn.RNN` of linears that quantize."""

    stands_for = nn.RNN

    @property
    def nonlinearity(self) -> str:
        """The activation of every step, relu or tanh."""
        return "relu" if any(isinstance(part, RNNStep) and part.relu for part in self.modules()) else "tanh"

    @property
    def mode(self) -> str:
        """The name of the stock module's kernel."""
        return f"RNN_{self.nonlinearity.upper()}"
