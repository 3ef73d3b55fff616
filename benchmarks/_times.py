"""Times of one example on one thread: float, every engine, and the peers, in turns in one process."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import fxquant as fq
from _peers import Forward, nncf_static, onnxruntime_file, onnxruntime_runner, openvino_runner, torch_ao_runner
from _rows import Row
from fxquant.engines.timing import time_interleaved

ENGINES = {"onednn": "torch", "native": "native", "onnxruntime": "onnxruntime", "openvino": "openvino"}


def contenders(
    model: nn.Module, calibrated: nn.Module, method: str, batches: Sequence[Tensor]
) -> dict[tuple[str, str], Callable[[], Forward]]:
    """(method, kernels) and how to get what runs; `calibrated` goes on to every engine, and `method` is its row."""
    found: dict[tuple[str, str], Callable[[], Forward]] = {("float", "torch"): lambda: model}
    for engine, kernels in ENGINES.items():
        found[method, kernels] = lambda engine=engine: fq.convert_fx(calibrated, engine=engine)
    found["torch.ao FX", "torch"] = lambda: torch_ao_runner(model, batches, "x86", scripted=True, channels_last=True)
    found["ONNX Runtime", "onnxruntime"] = lambda: onnxruntime_runner(onnxruntime_file(model, batches), 1)
    found["NNCF", "openvino"] = lambda: openvino_runner(nncf_static(model, batches), 1)
    return found


def time_rows(name: str, model: nn.Module, calibrated: nn.Module, method: str, batches: Sequence[Tensor]) -> list[Row]:
    """Rows with times. What is not installed, or does not take the model, is left out with a line that says so."""
    torch.set_num_threads(1)
    example = batches[0][:1]
    single = [picture for batch in batches[:2] for picture in batch[:4].split(1)]
    calls = {}
    for key, make in contenders(model, calibrated, method, single).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                calls[key] = functools.partial(make(), example)
                calls[key]()
        except (ImportError, RuntimeError, fq.FxQuantError) as error:
            calls.pop(key, None)
            print(f"{name}, {key[0]} in {key[1]}: left out, {type(error).__name__}: {str(error)[:200]}")
    found = time_interleaved({"/".join(key): call for key, call in calls.items()}, seconds=0.5 * len(calls))
    times: dict[str, dict[str, float]] = {}
    for key in calls:
        times.setdefault(key[0], {})[key[1]] = found["/".join(key)].median
    return [Row(model=name, method=method, times=each) for method, each in times.items()]
