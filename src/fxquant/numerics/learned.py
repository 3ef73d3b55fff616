"""The parameters of a learned quantizer, on the module that owns them.

    lsq, pact    scale                          0 until it starts
    lsq+         scale, offset
    tqt          log2_threshold                 -inf until it starts

"Not started" is a value of the parameter itself, so it goes along with checkpoints, averaged copies and broadcasts.
What starts it is a range (calibration, the first batch) or, for LSQ, the mean magnitude of the first tensor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fxquant.core.spec import Spec
from fxquant.numerics.affine import MIN_SCALE, choose_qparams
from fxquant.numerics.lsq import lsq, lsq_plus, positive, zero_point_of
from fxquant.numerics.pact import pact
from fxquant.numerics.straight_through import straight_through
from fxquant.numerics.tqt import threshold_of, tqt, tqt_scale


def learns_range(spec: Spec) -> bool:
    """Whether the range itself is learned; "ste" takes it from an observer or from the weights."""
    return spec.learn not in (None, "ste")


def parameter_of(spec: Spec) -> str:
    """The name of the parameter that holds the learned range."""
    return "log2_threshold" if spec.learn == "tqt" else "scale"


def add_parameters(module: nn.Module, spec: Spec, shape: tuple[int, ...]) -> None:
    """Give a module the parameters that its spec learns, and its zero point, none of them started.

    The zero point is a whole number kept as a float: averaged copies would round an integer the wrong way.
    """
    for name in ("scale", "zero_point"):
        module._buffers.pop(name, None)
    start = -math.inf if spec.learn == "tqt" else 0.0
    module.register_parameter(parameter_of(spec), nn.Parameter(torch.full(shape, start)))
    if spec.learn == "lsq+":
        module.register_parameter("offset", nn.Parameter(torch.zeros(shape)))
    else:
        module.register_buffer("zero_point", torch.zeros(shape))


def is_started(module: nn.Module, spec: Spec) -> bool:
    """Whether the learned range has its first value."""
    value = module._parameters[parameter_of(spec)]
    assert value is not None
    unset = value == (-math.inf if spec.learn == "tqt" else 0.0)
    return not bool(unset.all())


@torch.no_grad()
def start(module: nn.Module, spec: Spec, low: Tensor, high: Tensor, step: Tensor | None = None) -> None:
    """Set the first values from a range, with `step` in place of its scale if given."""
    scale, zero_point = choose_qparams(low, high, spec)
    if step is not None:
        scale = torch.where(step > 0, step.clamp_min(MIN_SCALE), scale)
    parameters = module._parameters
    if spec.learn == "lsq+":
        _put(parameters["offset"], -zero_point * scale)
    else:
        _put(module._buffers["zero_point"], zero_point)
    first = threshold_of(scale, zero_point, spec) if spec.learn == "tqt" else scale
    _put(parameters[parameter_of(spec)], first)


def _put(tensor: Tensor | None, value: Tensor) -> None:
    assert tensor is not None
    tensor.data.copy_(value.to(tensor.dtype).expand(tensor.shape))


@torch.no_grad()
def learned_qparams(module: nn.Module, spec: Spec) -> tuple[Tensor, Tensor]:
    """(scale, zero_point) as integers would be stored with now."""
    parameter = module._parameters[parameter_of(spec)]
    assert parameter is not None
    value = parameter.detach().float()
    if spec.learn == "lsq+":
        offset = module._parameters["offset"]
        assert offset is not None
        return positive(value), zero_point_of(offset.detach().float(), positive(value), spec)
    zero_point = _zero_point(module)
    return tqt_scale(value, zero_point, spec) if spec.learn == "tqt" else positive(value), zero_point


def learned_fake_quantize(module: nn.Module, x: Tensor, spec: Spec) -> Tensor:
    """x on the learned grid, with gradients to x and to the parameters."""
    value = module._parameters[parameter_of(spec)]
    assert value is not None
    if spec.learn == "lsq+":
        offset = module._parameters["offset"]
        assert offset is not None
        return lsq_plus(x, value, offset, spec)
    by_kind = {"lsq": lsq, "tqt": tqt, "pact": pact}
    return by_kind[spec.learn or ""](x, value, _zero_point(module), spec)


def observed_fake_quantize(x: Tensor, low: Tensor, high: Tensor, spec: Spec) -> Tensor:
    """x on the grid of a range that is not learned, with the straight-through gradient."""
    return straight_through(x, *choose_qparams(low, high, spec), spec)


def _zero_point(module: nn.Module) -> Tensor:
    stored = module._buffers["zero_point"]
    assert stored is not None
    return stored.round().to(torch.int32)
