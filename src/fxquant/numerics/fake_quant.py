"""The quantizer that sits in a prepared graph.

    observe    x' = x, and the observer sees x
    train      x' = fake_quantize(x) with gradients: the range follows the data ("ste") or is learned (learned/)
    frozen     x' = fake_quantize(x, scale, zero_point), with the range of x itself for dynamic specs
    off        x' = x: frozen without a range

A spec that learns starts in "train". Its range starts from calibration if there was one, else from the first batch in
train mode; before that the quantizer lets x pass. In eval mode nothing is observed, unless rounding is switched off
(switches.py): then it only observes.

`state` is a plain attribute, so that a compiled graph branches on it without reading a tensor; it travels in the state
dict as an extra state that is a small tensor, which `torch.load(weights_only=True)` and safetensors both accept.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.errors import StageError
from fxquant.graph.quantizer import Quantizer
from fxquant.numerics.adopt import adopt_grid, adopt_observer, adopt_tensors, fixed_grid, is_near
from fxquant.numerics.affine import choose_qparams, fake_quantize
from fxquant.numerics.buffers import KeepsDtypes, resize_to_loaded
from fxquant.numerics.distributed.merge import merge_over_ranks
from fxquant.numerics.learned.straight_through import observed_fake_quantize, straight_through
from fxquant.numerics.learned.table import add_parameters, learned_of, own_of, start
from fxquant.numerics.observers.table import Observer, make_observer
from fxquant.numerics.ranges import tensor_range
from fxquant.numerics.switches import Switched

State = Literal["observe", "frozen", "train", "off"]
STATES: tuple[State, ...] = get_args(State)  # saved by position: add new states at the end
_LOOKS_AWAY = 16  # added to the saved state of a quantizer whose observer is frozen
_LETS_PASS = 32  # and of one that does not round


class FakeQuant(KeepsDtypes, Switched, Quantizer):
    """Observes a tensor, then rounds it to the grid of its spec. Anything but a float tensor passes untouched."""

    scale: Tensor
    zero_point: Tensor
    activation_post_process: Observer | None
    _is_impure = True  # in calibration its calls have no users, and dead code elimination is to leave them

    def __init__(self, spec: Spec, name: str) -> None:
        super().__init__()
        self.spec = spec
        self.name = name
        self.state: State = "observe" if spec.learn is None else "train"
        self.ready = False  # a range is known to be there, so that no tensor has to be read to find out
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("zero_point", torch.tensor(0, dtype=torch.int32))
        self.activation_post_process = None if spec.dynamic else make_observer(spec, name)
        self.learned = learned_of(spec)
        if self.learned is not None:
            add_parameters(self, self.learned, ())

    @property
    def observer(self) -> Observer | None:
        """The observer; its state is found under the name that torch.ao gives it."""
        return self.activation_post_process

    def forward(self, x: Tensor, observe: bool = True, training: bool = True) -> Tensor:
        """`observe=False`: x lies on the grid of this quantizer anyway. `training=False`: let x pass in train mode."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        if self.state == "frozen":
            return self._fake_quantize(x)
        if self.state == "train":
            return self._train(x, observe) if training or not self.training else x
        if self.observer is not None and observe and self.observing and self.state == "observe":
            if self.training:
                raise StageError(
                    f"calibration ran in train mode at tensor {self.name!r}: batch norm and dropout would "
                    "bend its range. Call model.eval() first."
                )
            self.observer.update(x)
        return x

    def _train(self, x: Tensor, observe: bool) -> Tensor:
        if self.observer is None:
            return self._fake_quantize(x)
        # a checkpointed block runs again inside of backward: the batch was seen
        unseen = observe and torch._C._current_graph_task_id() == -1
        if not self.rounding:
            if unseen and self.observing:
                self.observer.update(x, shared=True)
            return x
        fresh = self.training and unseen
        if fresh and self.learned is None and self.observing:
            self.observer.update(x, shared=True)
        if not self._is_ready() and not (fresh and self._start_from(x)):
            return x
        if self.learned is not None:
            return self.learned.fake_quantize(own_of(self), x, self.spec)
        return straight_through(x, *self.observer.qparams(), self.spec)

    def _is_ready(self) -> bool:
        """Tell whether there is a range; one that calibration left with the observer starts what is learned."""
        if not self.ready:
            assert self.observer is not None
            if self.learned is None:
                self.ready = self.observer.seen
            elif self.learned.is_started(own_of(self)):
                self.ready = True
            elif self.observer.seen:
                start(self, self.learned, self.spec, *self.observer.range())
                self.ready = True
        return self.ready

    def _start_from(self, x: Tensor) -> bool:
        """Start what is learned from a first batch, the same on all ranks; False if it holds nothing."""
        if self.observer is None or self.learned is None:
            return False
        self.observer.update(x)
        merge_over_ranks([self.observer])
        if not self.observer.seen:
            return False
        start(self, self.learned, self.spec, *self.observer.range())
        self.ready = True
        return True

    @property
    def has_range(self) -> bool:
        """Whether it saw data, was given a range, or learned one."""
        if self.observer is None or self.state == "frozen":
            return True
        return self.observer.seen or (self.learned is not None and self.learned.is_started(own_of(self)))

    def compute_qparams(self) -> tuple[Tensor, Tensor]:
        """(scale, zero_point), observed or learned; StageError when there was no data, or the spec is dynamic."""
        if self.observer is None:
            raise StageError(f"tensor {self.name!r} ({self.spec}) is dynamic: its scale is found for each input.")
        if self.state == "frozen":
            return self.scale, self.zero_point
        if self.state == "train" and self.learned is not None and self._is_ready():
            return self.learned.qparams(own_of(self), self.spec)
        return self.observer.qparams()

    def freeze(self) -> None:
        """Fix scale and zero point, and quantize from now on. What was learned becomes a buffer."""
        if self.observer is not None and self.state != "frozen":
            scale, zero_point = self.compute_qparams()
            self._parameters.clear()
            self.register_buffer("scale", scale)
            self.register_buffer("zero_point", zero_point)
        self.state, self.rounding = "frozen", True

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """`compute_qparams`, as torch.ao calls it."""
        return self.compute_qparams()

    def _fake_quantize(self, x: Tensor) -> Tensor:
        if not self.rounding:
            return x
        if self.observer is not None:
            return fake_quantize(x, self.scale, self.zero_point, self.spec)
        if x.numel() == 0:
            return x
        low, high = tensor_range(x.detach(), self.spec)
        if self.state == "train":
            return observed_fake_quantize(x, low, high, self.spec)
        return fake_quantize(x, *choose_qparams(low, high, self.spec), self.spec)

    def get_extra_state(self) -> Tensor:
        flags = (0 if self.observing else _LOOKS_AWAY) + (0 if self.rounding else _LETS_PASS)
        return torch.tensor(STATES.index(self.state) + flags, dtype=torch.int8)

    def set_extra_state(self, state: Tensor) -> None:
        value = int(state)
        self.observing, self.rounding = not value & _LOOKS_AWAY, not value & _LETS_PASS
        loaded = STATES[value % _LOOKS_AWAY]
        # calibration is where training starts from, whatever was calibrated
        if self.state != "train" or (loaded == "frozen" and self.spec.learn is None):
            self.state = loaded

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        self.ready = False
        extra = state_dict.get(f"{prefix}_extra_state")
        if extra is not None and extra.numel() != 1:
            cast("list[str]", args[-1]).append(
                f"{prefix[:-1]}: the state is that of a converted model. Load it into one that convert_fx made."
            )
            return
        if self.spec.learn is not None and self.observer is not None:
            self._adopt(self.observer, state_dict, prefix)
        resize_to_loaded(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _adopt(self, observer: Observer, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Rewrite the state of a quantizer that did not train: it gives what is learned a start."""
        extra, at = state_dict.get(f"{prefix}_extra_state"), f"{prefix}activation_post_process."
        state = STATES[int(extra) % _LOOKS_AWAY] if isinstance(extra, Tensor) else "train"
        grid = fixed_grid(state_dict, prefix) if state == "frozen" else None
        if self.learned is not None and state != "train":
            adopt_tensors(self, state_dict, prefix)
        adopt_observer(observer, self.spec, state_dict, at)
        if self.learned is not None and grid is not None and is_near(observer, grid, state_dict, at):
            started = adopt_grid(self.learned, self.spec, grid)
            state_dict.update({prefix + name: tensor for name, tensor in started.items()})

    def extra_repr(self) -> str:
        return f"{self.name}: {self.spec}, {self.state}"
