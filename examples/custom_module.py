"""A module of one's own through float, observed and quantized: `python examples/custom_module.py`.

`Scale` multiplies channels by learned gains. Its author knows how it is to be quantized, and two more classes say so:
for static ranges, for ranges found at run time, and for weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from _command import options
from torch import Tensor, nn

import fxquant as fq


class Scale(nn.Module):
    """x * gain, channel by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class ObservedScale(nn.Module):
    """Float while calibration looks: what `from_float` makes gets the rule's `QConfig`, and may keep observers."""

    def __init__(self, gain: Tensor, qconfig: fq.QConfig) -> None:
        super().__init__()
        self.gain, self.qconfig = nn.Parameter(gain, requires_grad=False), qconfig
        self.weight_observer = qconfig.weight()

    @classmethod
    def from_float(cls, module: Scale) -> ObservedScale:
        return cls(module.gain.detach(), module.qconfig)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class QuantizedScale(nn.Module):
    """The gains as int8 with one scale. Inputs and outputs are floats, on int8 grids where the mode is static."""

    def __init__(self, gain: Tensor, output: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        step = float(gain.abs().max()) / 127
        self.register_buffer("integers", torch.clamp(torch.round(gain / step), -127, 127).to(torch.int8))
        self.step, self.output = step, output

    @classmethod
    def from_observed(cls, module: ObservedScale) -> QuantizedScale:
        observer = getattr(module, "activation_post_process", None)  # of the output; static only
        return cls(module.gain, None if observer is None else observer.calculate_qparams())

    def forward(self, x: Tensor) -> Tensor:
        y = x * (self.integers * self.step)
        if self.output is None:
            return y
        scale, zero_point = (float(value) for value in self.output)
        return torch.fake_quantize_per_tensor_affine(y, scale, int(zero_point), 0, 255)


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(32, width), Scale(width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale(self.first(x).relu()))


QCONFIGS = {
    "static": fq.default_qconfig,
    "dynamic": fq.default_dynamic_qconfig,
    "weight_only": fq.weight_only_qconfig,
}


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options(__doc__, arguments)
    torch.manual_seed(0)
    model = Net().eval()
    batches = [torch.randn(16, 32) for _ in range(8)]
    result = {}
    for mode, qconfig in QCONFIGS.items():
        prepared = fq.prepare_fx(
            model,
            {"": qconfig},
            (batches[0],),
            prepare_custom_config={"float_to_observed_custom_module_class": {mode: {Scale: ObservedScale}}},
        )
        fq.calibrate(prepared, batches)
        converted = fq.convert_fx(
            prepared,
            convert_custom_config={
                "observed_to_quantized_custom_module_class": {mode: {ObservedScale: QuantizedScale}}
            },
        )
        assert isinstance(converted.scale, QuantizedScale)
        x = torch.randn(64, 32)
        wanted = model(x)
        result[mode] = float(10 * torch.log10(wanted.square().sum() / (wanted - converted(x)).square().sum()))
        print(f"{mode}: {type(converted.scale).__name__}, output SQNR {result[mode]:.1f} dB")
    return result


if __name__ == "__main__":
    main()
