"""Hardware targets: data only. `by_name` finds one; `x86` is the default."""

from __future__ import annotations

from fxquant.core.target import Target
from fxquant.errors import ConfigError
from fxquant.targets.npu import npu
from fxquant.targets.onnxruntime import onnxruntime
from fxquant.targets.openvino import openvino
from fxquant.targets.x86 import x86

X86_NAMES = ("x86", "fbgemm", "qnnpack", "onednn")
RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino}
NAMES = (*X86_NAMES, *RUNTIMES, "npu")


def by_name(target: str | Target | None) -> Target:
    """A target from its name, itself, or None for the machine's own."""
    if isinstance(target, Target):
        return target
    if target is None or target in X86_NAMES:
        return x86()
    if target in RUNTIMES:
        return RUNTIMES[target]()
    if target == "npu":
        return npu()
    raise ConfigError(f"target {target!r} is unknown. Known: {', '.join(NAMES)}; or give a fxquant.Target.")


def on_cpus() -> tuple[Target, ...]:
    """The targets between which an engine may choose: what runs on this machine."""
    return (x86(), *(make() for make in RUNTIMES.values()))


def of_engine(engine: str) -> str | None:
    """The name of the target that an engine asks for; None is the machine's own."""
    return engine if engine in RUNTIMES else None
