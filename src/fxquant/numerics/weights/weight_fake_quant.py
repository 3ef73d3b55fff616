"""The quantizer of a weight in training.

"ste" takes the range of the weight as it is now, the way conversion does (weight_range.py), so there is nothing to
observe and nothing to save. The others learn it, from a start at the first weight that they see: the least squared
error for LSQ, the range of the spec's observer for the others.

What they learn is the range as a multiple of the weight's root mean square (per channel or group, as the scale is):

    log s = learned + log rms(w)

The weight that is rounded has the gain of a batch norm in it, gamma / sqrt(running_var + eps), which moves by factors
while the running statistics settle. A range that is learned by itself cannot follow that, and clips.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.config.spec import Spec
from fxquant.numerics.adopt import adopt_grid, fixed_grid
from fxquant.numerics.affine import channel_axis, choose_qparams, fake_quantize, quantize, sqnr_db
from fxquant.numerics.buffers import KeepsDtypes
from fxquant.numerics.learned.base import Learned, Own
from fxquant.numerics.learned.straight_through import straight_through
from fxquant.numerics.learned.table import add_parameters, learned_of, own_of
from fxquant.numerics.ranges import rows_like_scale
from fxquant.numerics.switches import Switched
from fxquant.numerics.weights.weight_range import check_weight, weight_qparams, weight_range

_FITS = 6.0  # dB: on a grid of half the bits next to nothing of a weight is left


class WeightFakeQuant(KeepsDtypes, Switched):
    """Rounds a weight to the grid of its spec, with gradients.

    A range that is not learned is that of the weight as it is now, as in conversion: `disable_observer` leaves it so.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, spec: Spec, name: str, shape: torch.Size) -> None:
        super().__init__()
        self.spec = spec
        self.name = name
        self.ready = False
        self.frozen = False
        self.learned = learned_of(spec)
        if self.learned is not None:
            add_parameters(self, self.learned, scale_shape(spec, shape))

    def forward(self, weight: Tensor) -> Tensor:
        if not self.rounding:
            return weight
        if self.frozen:
            return fake_quantize(weight, self.scale, self.zero_point, self.spec)
        if self.learned is None:
            return straight_through(weight, *self.compute_qparams(weight), self.spec)
        return self.learned.fake_quantize(self._own(self.learned, weight), weight, self.spec)

    def _own(self, learned: Learned, weight: Tensor) -> Own:
        """Return what is learned, for this weight. The first one starts it."""
        own = own_of(self)
        size = learned.log_size(log2_size(weight, self.spec))
        if not self.ready:
            if not learned.is_started(own):
                self._start(learned, own, weight, size)
            self.ready = True
        return {**own, learned.name: own[learned.name] + size}

    @torch.no_grad()
    def _start(self, learned: Learned, own: Own, weight: Tensor, size: Tensor) -> None:
        low, high = weight_range(weight.detach().float(), learned.starting(self.spec))
        learned.start(own, *choose_qparams(low, high, self.spec), self.spec)
        own[learned.name].data.sub_(size)

    @torch.no_grad()
    def read_fixed(self, weight: Tensor, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Rewrite the fixed grid of a weight into where what is learned starts; one of other bits is left out."""
        grid = None if self.frozen else fixed_grid(state_dict, prefix)
        if grid is None:
            return
        del state_dict[f"{prefix}scale"], state_dict[f"{prefix}zero_point"]
        if self.learned is None or grid[0].shape != own_of(self)[self.learned.name].shape:
            return
        values = weight.detach().float()
        if sqnr_db(values, fake_quantize(values, *grid, self.spec)) < _FITS:
            return
        started = adopt_grid(self.learned, self.spec, grid)
        started[self.learned.name].data.sub_(self.learned.log_size(log2_size(weight, self.spec)))
        state_dict.update({prefix + name: tensor for name, tensor in started.items()})

    @torch.no_grad()
    def compute_qparams(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(scale, zero_point) for this weight, found or learned."""
        if self.frozen:
            return self.scale, self.zero_point
        if self.learned is None:
            return weight_qparams(weight.detach().float(), self.spec, self.name)
        return self.learned.qparams(self._own(self.learned, weight), self.spec)

    @torch.no_grad()
    def quantize(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(q, scale, zero_point): the integers of the values that `forward` gives."""
        scale, zero_point = self.compute_qparams(weight)
        return quantize(weight.detach().float(), scale, zero_point, self.spec), scale, zero_point

    def freeze(self, weight: Tensor) -> None:
        """Fix scale and zero point."""
        check_weight(weight, self.spec, self.name)
        self.fix(*self.compute_qparams(weight))

    def fix(self, scale: Tensor, zero_point: Tensor) -> None:
        """Round to this grid from now on."""
        self._parameters.clear()
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)
        self.frozen = self.rounding = True

    def _load_from_state_dict(self, *args: object) -> None:
        self.ready = False
        super()._load_from_state_dict(*args)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.spec}"


@torch.no_grad()
def log2_size(weight: Tensor, spec: Spec) -> Tensor:
    """log2 of the root mean square of what shares a scale, in its shape; 0 where all is 0."""
    power = rows_like_scale(weight.detach().float().square(), spec).mean(-1)
    return torch.where(power > 0, power, 1.0).log2() / 2


def scale_shape(spec: Spec, shape: torch.Size) -> tuple[int, ...]:
    """Return the shape of the scale of a weight."""
    if spec.granularity == "per_tensor":
        return ()
    if spec.group_size is not None:
        return (*shape[:-1], shape[-1] // spec.group_size)
    return (shape[channel_axis(torch.empty(shape, device="meta"), spec)],)
