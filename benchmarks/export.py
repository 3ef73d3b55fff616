"""Exports of whole networks: int8 kernels, agreement and time in ONNX Runtime and OpenVINO; cost of an export.

    python benchmarks/export.py                       all networks
    python benchmarks/export.py --networks resnet18   some of them
    python benchmarks/export.py --cost                export of ResNet-50: seconds and peak memory

kernels   int8 ops in ONNX Runtime's optimized graph
own       the same of the model that ONNX Runtime's own quantizer makes, from the same data
ms        of both, for one batch: CPU time of one thread, the least of turns
openvino  ops that OpenVINO's compiled model runs in i8 / u8
agree     share of outputs whose first class is that of the reference, of how many (of YOLOX-Nano: cells that see
          something), in ONNX Runtime and in OpenVINO
float     share of them that the float model gives that class, of the reference and of the file
apart     dB of the outputs over their distance from the reference; beside it, that of the reference from float
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fxquant as fq
from _exported import NETWORKS, Case, case
from _models import add_data_argument, random_network
from fxquant.numerics.affine import sqnr_db

Array = np.ndarray[Any, Any]


def kernels(path: Path) -> Counter[str]:
    """The ops of ONNX Runtime's optimized graph that compute on integers."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path.with_suffix(".optimized"))
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)
    computing = ("QLinear", "QGemm", "QAttention", "MatMulInteger", "ConvInteger", "DynamicQuantize", "MatMulNBits")
    return Counter(
        {name: n for name, n in names.items() if name.startswith(computing) and name != "DynamicQuantizeLinear"}
    )


def own_file(given: Case, folder: Path) -> Path:
    """The model that ONNX Runtime's quantizer makes from the float one."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    exported, clean, own = (folder / f"{name}.onnx" for name in ("float", "clean", "own"))
    torch.onnx.export(given.model, (given.test[0],), exported, dynamo=True, verbose=False, external_data=False)
    quant_pre_process(str(exported), str(clean), skip_symbolic_shape=True)
    name = onnx.load(clean).graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter([{name: batch.numpy()} for batch in given.calibration])

        def get_next(self) -> Any:
            return next(self.rows, None)

    quantize_static(str(clean), str(own), Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    return own


class Session:
    """A file in ONNX Runtime, on one thread."""

    def __init__(self, path: Path) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def __call__(self, batch: Tensor) -> Array:
        return self.session.run(None, {self.name: batch.numpy()})[0]


class Compiled:
    """A file in OpenVINO. What is float is computed so, not in bfloat16, which it takes where the CPU has it."""

    def __init__(self, path: Path) -> None:
        import openvino as ov

        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        self.compiled = ov.Core().compile_model(str(path), "CPU", settings)

    def kernels(self) -> int:
        """How many ops run on 8 bits."""
        ops = self.compiled.get_runtime_model().get_ordered_ops()
        return sum(op.get_rt_info()["runtimePrecision"].astype(str) in ("i8", "u8") for op in ops)

    def __call__(self, batch: Tensor) -> Array:
        return self.compiled([batch.numpy()])[0]


def least_times(sessions: list[Session], batch: Tensor, turns: int = 20) -> list[float]:
    """Milliseconds of CPU of each, in turns."""
    found = [float("inf")] * len(sessions)
    for _ in range(turns):
        for index, session in enumerate(sessions):
            start = time.process_time()
            session(batch)
            found[index] = min(found[index], 1e3 * (time.process_time() - start))
    return found


def agreement(true: Array, wanted: Array, found: Array, least: float) -> tuple[str, str]:
    """The share of places whose first class is the same, of those where the reference is so sure of it; and of float.

    `true` is what the float model gives, `wanted` the reference, `found` the file.
    """
    axis = 1 if wanted.ndim == 4 else -1
    sure = wanted.max(axis) >= least
    first, second, third = (each.argmax(axis)[sure] for each in (true, wanted, found))
    same = second == third
    return f"{same.mean():.2%} of {same.size}", f"{(first == second).mean():.1%} / {(first == third).mean():.1%}"


def measure(name: str, peer: bool, data: Path, inputs: int) -> str:
    given = case(name, data, inputs)
    with tempfile.TemporaryDirectory() as place, torch.no_grad():
        folder = Path(place)
        true = torch.cat([given.model(batch) for batch in given.test])
        cells = []
        for target, load in (("onnxruntime", Session), ("openvino", Compiled)):
            quantized = fq.quantize(given.model, given.calibration, target=target, engine="reference")
            path = fq.export_onnx(quantized, folder / f"{target}.onnx", given.test[0])
            running = load(path)
            wanted = torch.cat([quantized(batch) for batch in given.test])
            found = np.concatenate([running(batch) for batch in given.test])
            agree = agreement(true.numpy(), wanted.numpy(), found, given.least)
            apart = f"{sqnr_db(wanted, torch.from_numpy(found)):.0f} / {sqnr_db(true, wanted):.0f}"
            if isinstance(running, Compiled):
                cells += [str(running.kernels()), *agree, apart]
                continue
            both = [running, Session(own_file(given, folder))] if peer else [running]
            counts = [sum(kernels(folder / f"{each}.onnx").values()) for each in (target, "own")[: len(both)]]
            times = least_times(both, given.test[0])
            cells += [" / ".join(map(str, counts)), " / ".join(f"{ms:.2f}" for ms in times), *agree, apart]
    return row(name, *cells)


def row(name: str, *cells: str) -> str:
    widths = (14, 16, 18, 16, 9, 9, 18, 16, 9)
    return f"{name:21}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def cost() -> str:
    """Seconds and peak memory of exporting ResNet-50."""
    model = random_network("resnet50", statistics=False)
    x = torch.randn(1, 3, 224, 224)
    size = sum(tensor.numel() * 4 for tensor in (*model.parameters(), *model.buffers())) / 2**20
    quantized = fq.quantize(model, [x], target="onnxruntime", engine="reference")
    with tempfile.TemporaryDirectory() as place:
        fq.export_onnx(
            fq.quantize(nn.Sequential(nn.Linear(8, 8)), [torch.randn(1, 8)], engine="reference"),
            f"{place}/w.onnx",
            torch.randn(1, 8),
        )
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, time.perf_counter()
        cpu = time.process_time()
        fq.export_onnx(quantized, f"{place}/m.onnx", x)
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10 - before
    return (
        f"resnet50: {seconds:.1f} s ({used:.1f} s of CPU), peak grew by {grown:.0f} MB; its float size is {size:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=NETWORKS, choices=NETWORKS)
    add_data_argument(parser)
    parser.add_argument("--inputs", type=int, default=1000, help="to compare on (pictures, sentences, words)")
    parser.add_argument("--no-peer", action="store_true", help="leave ONNX Runtime's own quantizer out")
    parser.add_argument("--cost", action="store_true", help="only the cost of an export")
    options = parser.parse_args()
    if options.cost:
        print(cost())
        return
    apart = ("float", "apart")
    print(row("network", "kernels / own", "ms / own", "agree ORT", *apart, "openvino", "agree OV", *apart))
    for name in options.networks:
        print(measure(name, not options.no_peer, options.data, options.inputs), flush=True)


if __name__ == "__main__":
    main()
