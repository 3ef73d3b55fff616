"""The peers that the benchmarks run beside fxquant, each with its own documented recipe, on the same batches."""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx, nn

import fxquant as fq

Forward = Callable[[Tensor], Tensor]
_WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@torch.no_grad()
def run(model: Forward, batches: Sequence[Tensor]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao warns about its own graphs
        return torch.cat([model(batch) for batch in batches])


def torch_ao_prepared(model: nn.Module, example: Tensor) -> nn.Module:
    """torch.ao FX with its x86 default, observers inserted."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces its removal
        return prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (example,))


def torch_ao_converted(prepared: nn.Module) -> fx.GraphModule:
    from torch.ao.quantization.quantize_fx import convert_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_fx(copy.deepcopy(prepared))


def torch_ao_static(model: nn.Module, batches: Sequence[Tensor]) -> fx.GraphModule:
    """torch.ao FX: prepare, calibrate, convert."""
    prepared = torch_ao_prepared(model, batches[0])
    run(prepared, batches)
    return torch_ao_converted(prepared)


def torch_ao_int8_ops(converted: fx.GraphModule) -> int:
    """How many convolutions and linears run in int8."""
    count = 0
    for node in converted.graph.nodes:
        target = node.target
        if node.op == "call_module":
            target = type(converted.get_submodule(target)).__module__
        words = str(target)
        count += "quantized" in words and ("conv" in words or "linear" in words)
    return count


def fxquant_int8_ops(converted: nn.Module) -> int:
    """How many convolutions and linears run in int8."""
    return sum(row.status == "int8" and row.kind.startswith(("conv", "linear")) for row in fq.explain(converted))


def weighted_ops(model: nn.Module) -> int:
    """How many convolutions and linears the float model has."""
    return sum(isinstance(module, _WEIGHTED) for module in model.modules())


def onnxruntime_static(model: nn.Module, batches: Sequence[Tensor]) -> Forward:
    """ONNX Runtime's `quantize_static`: QDQ, percentile calibration, int8 weights per channel, uint8 activations."""
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)  # its advice to pre-process comes even after doing so
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        exported, clean, int8 = (str(Path(directory) / name) for name in ("float.onnx", "clean.onnx", "int8.onnx"))
        batch = torch.export.Dim("batch")
        program = torch.onnx.export(
            model, (batches[0],), dynamo=True, dynamic_shapes=({0: batch},), input_names=["x"], verbose=False
        )
        program.save(exported)
        quant_pre_process(exported, clean)
        quantize_static(
            clean,
            int8,
            _Reader(batches),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.Percentile,
        )
        session = ort.InferenceSession(int8, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


class _Reader:
    """What `quantize_static` asks for: `get_next` gives a batch, and None at the end."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self._left = iter(batches)

    def get_next(self) -> dict[str, object] | None:
        batch = next(self._left, None)
        return None if batch is None else {"x": batch.numpy()}
