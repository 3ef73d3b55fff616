"""A Spec from an observer or fake-quantize module, read by its attributes as torch.ao and torchao name them.

stock classes     read by what they say: dtype, qscheme, quant_min, quant_max, eps, ch_axis, averaging_constant
fxquant's own     have their spec
anything else     is run as the observer itself, if it has a `calculate_qparams` (Spec.factory); else refused

A dtype of float32 means no quantization, float16 weights that are stored as float16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn

from fxquant.config.spec import Learn, ObserverKind, Spec
from fxquant.errors import ConfigError

Float16 = Literal["float16"]
Read = Spec | Float16 | None

DEFAULT_EPS = torch.finfo(torch.float32).eps  # torch.ao's smallest scale, which stands for no wish
_STOCK = ("torch.ao.quantization.", "torch.quantization.", "torchao.quantization.")
_KINDS: dict[str, ObserverKind] = {
    "HistogramObserver": "histogram",
    "MinMaxObserver": "minmax",
    "PerChannelMinMaxObserver": "minmax",
    "MovingAverageMinMaxObserver": "moving_average",
    "MovingAveragePerChannelMinMaxObserver": "moving_average",
    "FixedQParamsObserver": "fixed",
    "ReuseInputObserver": "minmax",  # ops that move tensors have the grid of their input in any case
}
_PASSING = ("PlaceholderObserver", "NoopObserver")
_TRAINED = ("FakeQuantize", "FusedMovingAvgObsFakeQuantize", "FixedQParamsFakeQuantize")
_INTEGERS: dict[torch.dtype, tuple[int, int]] = {
    torch.qint8: (-128, 127),
    torch.int8: (-128, 127),
    torch.quint8: (0, 255),
    torch.uint8: (0, 255),
    torch.quint4x2: (0, 15),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.uint16: (0, 2**16 - 1),
}


@dataclass(frozen=True, slots=True)
class Factory:
    """What makes the user's own observer. A copy is the same one, so that copies of a Spec are equal."""

    make: Callable[[], Any]

    def __call__(self) -> nn.Module:
        made = self.make()
        return cast(nn.Module, getattr(made, "activation_post_process", made))

    def __copy__(self) -> Factory:
        return self

    def __deepcopy__(self, memo: object) -> Factory:
        return self


def read_factory(factory: object, field: str) -> Read:
    """Return what an observer class, or anything else that makes an observer or fake-quantize module, asks for."""
    if not callable(factory) or isinstance(factory, nn.Module):
        hint = " Give the class, or Class.with_args(...), not an instance." if isinstance(factory, nn.Module) else ""
        raise ConfigError(f"QConfig({field}={factory!r}): expected a fxquant.Spec or what makes an observer.{hint}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Please use quant_min and quant_max")
            made = factory()
    except ConfigError as error:
        raise ConfigError(f"QConfig({field}=...): {error}") from error
    except Exception as error:
        raise ConfigError(f"QConfig({field}={factory!r}): calling the observer factory failed: {error}") from error
    if type(made) is nn.Identity:
        return None
    if _is_from(made, ("fxquant.",)) and hasattr(made, "spec"):
        read: Read = made.spec
    else:
        read = _read(made, factory, f"QConfig({field}=...)")
    if read == "float16" and field != "weight":
        return None  # what has float16 around it is computed in float32
    return read


def _read(made: object, factory: Callable[[], object], where: str) -> Read:
    observer, learn = made, cast("Learn | None", None)
    inner = getattr(made, "activation_post_process", None)
    if isinstance(inner, nn.Module):
        observer, name = inner, type(made).__name__
        learnable = name == "_LearnableFakeQuantize"
        if not _is_from(made, _STOCK) or not (learnable or name in _TRAINED):
            raise ConfigError(
                f"{where}: {name} is a fake-quantize class with a forward of its own, which is not run here. "
                "Say the same with FakeQuantize.with_args(observer=...) or Spec(learn=...)."
            )
        symmetric = "symmetric" in str(getattr(observer, "qscheme", ""))
        learn = ("lsq" if symmetric else "lsq+") if learnable else "ste"
    name = type(observer).__name__
    dtype = getattr(observer, "dtype", None)
    known = _is_from(observer, _STOCK)
    if known and name in _PASSING and not getattr(observer, "is_dynamic", False):
        return passing(dtype, f"{where}: {name}")
    if known and name in _PASSING and dtype in (torch.float16, torch.float32):
        return passing(dtype, f"{where}: {name}")
    kind = "minmax" if known and name in _PASSING else _KINDS.get(name) if known else "custom"
    if kind is None or not callable(getattr(observer, "calculate_qparams", None)):
        raise ConfigError(
            f"{where}: an observer of class {name} gives no scale and zero point. Write what it stands for as a "
            "fxquant.Spec, or give the class a calculate_qparams() that returns both."
        )
    scheme = getattr(observer, "qscheme", None)
    low, high = getattr(observer, "quant_min", None), getattr(observer, "quant_max", None)
    eps = getattr(observer, "eps", None)
    dynamic = bool(getattr(observer, "is_dynamic", False))
    return spec_of(
        kind,
        dtype,
        where=f"{where}: {name}",
        qscheme=scheme,
        quant_min=low,
        quant_max=high,
        ch_axis=int(getattr(observer, "ch_axis", 0)),
        eps=None if eps is None else float(eps),
        averaging_constant=float(getattr(observer, "averaging_constant", 0.01)),
        is_dynamic=dynamic,
        learn=None if dynamic else learn,
        fixed=_fixed(observer) if kind == "fixed" else None,
        factory=Factory(factory) if kind == "custom" else None,
    )


def _fixed(observer: Any) -> tuple[float, int]:
    return float(observer.scale), int(observer.zero_point)


def passing(dtype: object, where: str) -> Read:
    """Return what an observer that looks at nothing means by its dtype."""
    if dtype in (torch.float32, None):
        return None
    if dtype == torch.float16:
        return "float16"
    raise ConfigError(
        f"{where}(dtype={dtype}) finds no range, so nothing can be {dtype}. Use is_dynamic=True (a range at run "
        "time), an observer such as MinMaxObserver, or torch.float16 or torch.float32."
    )


def integer_range(
    dtype: object, quant_min: int | None, quant_max: int | None, reduce_range: bool, where: str
) -> tuple[int, int]:
    """Return the grid that a dtype and limits ask for, in whole numbers; `reduce_range` takes one bit off."""
    limits = _INTEGERS.get(cast(torch.dtype, dtype))
    if limits is None:
        raise ConfigError(
            f"{where}(dtype={dtype}) is not supported. Known: qint8, quint8, int8, uint8, int16, uint16, quint4x2; "
            "float16 for weights."
        )
    if (quant_min is None) != (quant_max is None):
        raise ConfigError(f"{where}: give quant_min and quant_max together.")
    if quant_min is not None and quant_max is not None:
        if not limits[0] <= quant_min <= 0 <= quant_max <= limits[1] or quant_min == quant_max:
            raise ConfigError(
                f"{where}(quant_min={quant_min}, quant_max={quant_max}): expected limits around 0 that {dtype} holds, "
                f"from {limits[0]} to {limits[1]}."
            )
        limits = (int(quant_min), int(quant_max))
    return (limits[0] // 2, limits[1] // 2) if reduce_range else limits


def spec_of(
    kind: ObserverKind,
    dtype: object,
    *,
    where: str,
    qscheme: object = None,
    quant_min: int | None = None,
    quant_max: int | None = None,
    reduce_range: bool = False,
    ch_axis: int = 0,
    eps: float | None = None,
    averaging_constant: float = 0.01,
    is_dynamic: bool = False,
    learn: Learn | None = None,
    fixed: tuple[float, int] | None = None,
    factory: Factory | None = None,
) -> Spec:
    """Return a Spec from the settings that torch.ao's observers take. `fixed` are a scale and a zero point."""
    low, high = integer_range(dtype, quant_min, quant_max, reduce_range, where)
    signed = low < 0
    bits = max(high.bit_length(), (-low - 1).bit_length() if signed else 0) + signed
    scheme = str(qscheme if qscheme is not None else torch.per_tensor_affine)
    per_channel = "per_channel" in scheme
    whole = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    spec = Spec(
        bits=bits,
        signed=signed,
        symmetric="symmetric" in scheme and fixed is None,
        granularity="per_channel" if per_channel else "per_tensor",
        axis=ch_axis if per_channel else 0,
        dynamic=is_dynamic,
        observer="minmax" if is_dynamic or fixed is not None else kind,
        momentum=averaging_constant if kind == "moving_average" and not is_dynamic else 0.01,
        learn=learn,
        limits=None if (low, high) == whole else (low, high),
        min_scale=0.0 if eps is None or eps <= DEFAULT_EPS else eps,
        factory=None if is_dynamic else factory,
    )
    if fixed is not None:
        scale, zero = fixed
        spec = spec.with_(observer="fixed", range=((low - zero) * scale, (high - zero) * scale))
    return spec


def _is_from(made: object, packages: tuple[str, ...]) -> bool:
    return f"{type(made).__module__}.".startswith(packages)
