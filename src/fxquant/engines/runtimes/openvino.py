"""The OpenVINO engine: a converted model compiled for the CPU plugin, tuned for latency.

OpenVINO fuses more when it knows the shapes, so a model is compiled for each of the first few shapes that come, and
once for all others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fxquant.engines.onednn.pairs import overflows
from fxquant.engines.runtimes.runtime import Array, Runtime

if TYPE_CHECKING:
    import onnx_ir as ir
    import openvino as ov

_MOST_SHAPES = 4
_NOTHING = 1e-5  # constants below it are dropped where OpenVINO adds an int8 tensor to a float one
_WITHOUT_SNIPPETS = {"SNIPPETS_MODE": "DISABLE"}  # OpenVINO does not document it, so a version may refuse it


class OpenVino(Runtime["_Models"]):
    """Runs a converted graph in OpenVINO. See `Runtime`."""

    engine = package = "openvino"
    bits = 32
    gemm = False  # it moves scales through the reshapes, and fails on some shapes

    def _adapt(self, graph: ir.Model) -> None:
        from onnx_ir.passes import common

        from fxquant.engines.runtimes.drop_repeats import drop_repeats
        from fxquant.engines.runtimes.fold_constants import fold_constants
        from fxquant.engines.runtimes.fold_zero_points import fold_zero_points
        from fxquant.engines.runtimes.pad_integers import pad_integers
        from fxquant.engines.runtimes.pad_pools import pad_pools
        from fxquant.engines.runtimes.part_extremes import part_extremes
        from fxquant.engines.runtimes.wide import multiply_in_float

        if overflows():
            multiply_in_float(graph.graph)
        pad_integers(graph.graph)
        drop_repeats(graph.graph)
        fold_constants(graph.graph)
        _drop_zero_points(graph.graph)
        _add_tiny_in_float(graph.graph)
        pad_pools(graph.graph)
        part_extremes(graph.graph)
        fold_zero_points(graph.graph)
        common.RemoveUnusedNodesPass()(graph)
        self.snippets = not _has_residual_convolutions(graph.graph) or _has_attention(graph.graph)
        self.inputs = tuple(value.name for value in graph.graph.inputs)

    def _open(self, threads: int) -> _Models:
        return _Models(self.onnx_bytes, self.inputs, threads, self.snippets)

    def _run(self, session: _Models, arrays: list[Array]) -> list[Tensor]:
        compiled = session.at(arrays)
        try:
            request = compiled.free.pop()
        except IndexError:  # other threads have them
            request = compiled.model.create_infer_request()
        # outputs are copied: the request's own memory is written again by the next call
        results = request.infer([arrays[place] for place in compiled.places], share_inputs=True, share_outputs=False)
        outputs = [torch.from_numpy(array) for array in results.to_tuple()]  # results[0] costs 50 microseconds
        compiled.free.append(request)
        return outputs


def _drop_zero_points(graph: ir.Graph) -> None:
    """Leave out zero points of zero: OpenVINO computes some of them at run time, and then the op in float."""
    from fxquant.export.onnx.initializers import value_of

    for node in graph:
        if node.op_type == "DequantizeLinear" and len(node.inputs) == 3:
            zero = value_of(node.inputs[2])
            if zero is not None and not zero.any():
                node.resize_inputs(2)


def _add_tiny_in_float(graph: ir.Graph) -> None:
    """Let adds read tensors as they were before they were quantized, where OpenVINO would lose the zero point."""
    from fxquant.export.onnx.initializers import value_of
    from fxquant.export.onnx.producers import dequantize_before, quantize_before

    for node in graph:
        for place, value in enumerate(node.inputs if node.op_type == "Add" else ()):
            pair = dequantize_before(value)
            quantize = quantize_before(pair) if pair is not None and len(pair.inputs) == 3 else None
            if quantize is None:
                continue
            scale, zero = (value_of(constant) for constant in quantize.inputs[1:])
            if scale is not None and zero is not None and (abs(scale * zero) < _NOTHING).all():
                node.replace_input_with(place, quantize.inputs[0])


def _has_residual_convolutions(graph: ir.Graph) -> bool:
    """Tell whether an add takes a convolution and an int8 tensor, which the convolution's kernel could add itself."""
    return any(node.op_type == "Add" and {"Conv", "DequantizeLinear"} <= _makers(node) for node in graph)


def _has_attention(graph: ir.Graph) -> bool:
    return any(node.op_type == "MatMul" and "Softmax" in _makers(node) for node in graph)


def _makers(node: ir.Node) -> set[str]:
    """Return the kinds of the nodes that a node reads."""
    return {value.producer().op_type for value in node.inputs if value is not None and value.producer() is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compiled:
    """A model for inputs of some shapes, or of any, and its requests that are free.

    It lacks the inputs that nothing reads, since OpenVINO leaves those out: `places` are those that it has.
    """

    model: ov.CompiledModel
    places: tuple[int, ...]
    free: list[ov.InferRequest] = field(default_factory=list)


class _Models:
    """A compiled model for each of the first few shapes, and one for the rest.

    Snippets are the kernels that OpenVINO makes of elementwise ops and of attention. They also take the adds that
    would run inside a convolution, with a pass in float for each.
    """

    def __init__(self, onnx_bytes: bytes, inputs: tuple[str | None, ...], threads: int, snippets: bool) -> None:
        self.onnx_bytes = onnx_bytes
        self.inputs = inputs
        self.snippets = snippets
        self.settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            # where the CPU has it, OpenVINO would run all that is left in float in bfloat16
            "INFERENCE_PRECISION_HINT": "f32",
            # and would quantize the activations of weight-only linears
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        self.made: dict[tuple[tuple[int, ...], ...], _Compiled] = {}

    def at(self, arrays: list[Array]) -> _Compiled:
        """Return the model for inputs of these shapes."""
        shapes = tuple(array.shape for array in arrays)
        found = self.made.get(shapes)
        if found is None and len(self.made) < _MOST_SHAPES:
            found = self.made[shapes] = self._compile(shapes)
        elif found is None:
            found = self.made.get(()) or self.made.setdefault((), self._compile(None))
        return found

    def _compile(self, shapes: tuple[tuple[int, ...], ...] | None) -> _Compiled:
        import openvino as ov

        core = ov.Core()
        model = core.read_model(self.onnx_bytes)
        places = tuple(self.inputs.index(port.get_any_name()) for port in model.inputs)
        if shapes is not None and places:
            model.reshape({self.inputs[place]: list(shapes[place]) for place in places})
        return _Compiled(model=self._compiled(core, model), places=places)

    def _compiled(self, core: ov.Core, model: ov.Model) -> ov.CompiledModel:
        if not self.snippets:
            with contextlib.suppress(RuntimeError):
                return core.compile_model(model, "CPU", {**self.settings, **_WITHOUT_SNIPPETS})
        return core.compile_model(model, "CPU", self.settings)
