"""Hardware targets: data only. `by_name` finds one; `x86` is the default. There is no other list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from fxquant.config.forms import closest
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.targets.arm import arm, qnnpack
from fxquant.targets.bpu import bpu
from fxquant.targets.generic import generic
from fxquant.targets.march import march, put_march
from fxquant.targets.npu import npu, xint8, xint8_hard
from fxquant.targets.onnxruntime import onnxruntime
from fxquant.targets.openvino import openvino
from fxquant.targets.tensorrt import tensorrt
from fxquant.targets.tflite import tflite, tflite_16x8
from fxquant.targets.x86 import onednn, x86
from fxquant.targets.xnnpack import xnnpack

TARGETS: Mapping[str, Callable[[], Target]] = MappingProxyType(
    {
        "x86": x86,
        "x86-vnni": partial(x86, vnni=True, name="x86-vnni"),
        "x86-avx2": partial(x86, vnni=False, name="x86-avx2"),
        "x86-amx": partial(x86, vnni=True, name="x86-amx"),
        "fbgemm": onednn,  # torch.ao's names
        "onednn": onednn,
        "arm": arm,
        "qnnpack": qnnpack,
        "xnnpack": xnnpack,
        "onnxruntime": onnxruntime,
        "openvino": openvino,
        "tensorrt": tensorrt,
        "tflite": tflite,
        "tflite-16x8": tflite_16x8,
        "npu": npu,
        "xint8": xint8,
        "xint8-hard": xint8_hard,
        "bpu": bpu,
        "generic": generic,
    }
)


def by_name(target: str | Target | None) -> Target:
    """Return a target from its name, itself, or None for that of the process (`set_march`), else the machine's own."""
    if isinstance(target, Target):
        return target
    if target is None:
        return march() or x86()
    if not isinstance(target, str) or target not in TARGETS:
        raise ConfigError(
            f"target {target!r} is unknown.{closest(str(target), TARGETS)} Known: {', '.join(TARGETS)}; "
            "or give a fxquant.Target, or fxquant.load_target(path)."
        )
    return TARGETS[target]()


def set_march(target: str | Target | None) -> None:
    """Set the target of the process: what is taken where none is given. None forgets it.

    Example:
        >>> fq.set_march("bpu")
        >>> fq.set_march(None)  # as before
    """
    put_march(None if target is None else by_name(target))
