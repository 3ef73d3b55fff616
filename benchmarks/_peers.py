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
from fxquant.targets.cpu import cpu

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


def torch_ao_training(model: nn.Module, example: Tensor) -> nn.Module:
    """torch.ao FX with its x86 default, for training."""
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces its removal
        return prepare_qat_fx(copy.deepcopy(model).train(), get_default_qat_qconfig_mapping("x86"), (example,))


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


def torch_ao_runner(
    model: nn.Module, batches: Sequence[Tensor], engine: str, *, scripted: bool, channels_last: bool
) -> Forward:
    """torch.ao FX for one of its engines ("x86", "onednn"), as it is or scripted, traced and frozen."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    torch.backends.quantized.engine = engine
    prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping(engine), (batches[0],))
    run(prepared, batches)
    converted = convert_fx(prepared)
    if channels_last:
        converted = converted.to(memory_format=torch.channels_last)

    if scripted:
        with torch.no_grad():
            converted = torch.jit.freeze(torch.jit.trace(converted, batches[0]).eval())

    def forward(x: Tensor) -> Tensor:
        torch.backends.quantized.engine = engine
        return converted(x)

    return forward


def onnxruntime_file(model: nn.Module, batches: Sequence[Tensor], method: str = "MinMax") -> bytes:
    """The file of ONNX Runtime's `quantize_static`: QDQ, int8 weights per channel, uint8 activations."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)  # its advice to pre-process comes even after doing so
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        exported, clean, int8 = (str(Path(directory) / name) for name in ("float.onnx", "clean.onnx", "int8.onnx"))
        batch = torch.export.Dim("batch")
        shapes = ({0: batch},) if batches[0].shape[0] > 1 else None
        program = torch.onnx.export(
            model, (batches[0],), dynamo=True, dynamic_shapes=shapes, input_names=["x"], verbose=False
        )
        program.save(exported)
        # torch has written the shapes; its own search for them stops at the head of YOLOX
        quant_pre_process(exported, clean, skip_symbolic_shape=True)
        quantize_static(
            clean,
            int8,
            _Reader(batches),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
        )
        return Path(int8).read_bytes()


def onnxruntime_runner(file: bytes, threads: int = 0, *, exact: bool = False) -> Forward:
    """A session on the file; 0 threads leaves the number to the runtime.

    `exact` is for accuracy: without VNNI its int8 kernels lose sums that leave 16 bits, so the file runs in float.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    if exact and not cpu().vnni:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def nncf_static(model: nn.Module, batches: Sequence[Tensor]) -> object:
    """NNCF's post-training quantization of an OpenVINO model, with its defaults."""
    import nncf
    import openvino as ov

    transformer = batches[0].dim() == 3 or any(isinstance(module, nn.LayerNorm) for module in model.modules())
    converted = ov.convert_model(model, example_input=batches[0], input=list(batches[0].shape))
    data = nncf.Dataset([batch.numpy() for batch in batches])
    kind = nncf.ModelType.TRANSFORMER if transformer else None
    return nncf.quantize(converted, data, subset_size=len(batches), model_type=kind)


def nncf_sentences(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> object:
    """The same for an encoder of (ids, mask), with NNCF's hint that it is a transformer."""
    import nncf
    import openvino as ov

    shapes = [list(each.shape) for each in batches[0]]
    converted = ov.convert_model(model, example_input=batches[0], input=shapes)
    data = nncf.Dataset([tuple(each.numpy() for each in batch) for batch in batches])
    return nncf.quantize(converted, data, subset_size=len(batches), model_type=nncf.ModelType.TRANSFORMER)


def openvino_runner(model: object, threads: int, *, exact: bool = False) -> Callable[..., Tensor]:
    """`exact` as for ONNX Runtime: without VNNI, grids are simulated in float."""
    import openvino as ov

    settings = {
        **({"LP_TRANSFORMS_MODE": False} if exact and not cpu().vnni else {}),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()

    def forward(*inputs: Tensor) -> Tensor:
        made = request.infer([each.numpy() for each in inputs], share_inputs=True, share_outputs=False)
        return torch.from_numpy(made.to_tuple()[0])

    return forward


class _Reader:
    """What `quantize_static` asks for: `get_next` gives a batch, and None at the end."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self._left = iter(batches)

    def get_next(self) -> dict[str, object] | None:
        batch = next(self._left, None)
        return None if batch is None else {"x": batch.numpy()}
