"""Exports of whole networks: int8 kernels and agreement in ONNX Runtime and OpenVINO, time and memory.

    python benchmarks/export.py                       all networks
    python benchmarks/export.py --networks resnet18   some of them
    python benchmarks/export.py --cost                export of ResNet-50: seconds and peak memory

kernels      int8 ops in ONNX Runtime's optimized graph
own          the same of the model that ONNX Runtime's own quantizer makes, from the same data
openvino     ops that OpenVINO's compiled model runs in i8 / u8
agree        share of inputs (of YOLOX-Nano: cells that see something) whose first place is that of the reference

Weights are seeded random ones, but for YOLOX-Nano with `--data`: the trained ones, on COCO pictures.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fxquant as fq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _coco import load_pictures, load_yolox
from _yolox import YoloxNano

from _models import add_data_argument, import_timm, random_network

TIMM = ("resnet18", "mobilenetv2_100", "efficientnet_lite0", "vit_tiny_patch16_224")


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = _block(3, 16), _block(16, 32), _block(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.back2, self.back1 = _block(64, 32), _block(32, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        three = self.three(nn.functional.max_pool2d(two, 2))
        two = self.back2(torch.cat([two, self.up2(three)], 1))
        return self.head(self.back1(torch.cat([one, self.up1(two)], 1)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


class Tagger(nn.Module):
    """Embedding, LSTM in both directions, a class for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class Scores(nn.Module):
    """The scores of a detector: of each cell, how sure it is of each class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        rows = self.model(x)
        return rows[..., 4:5] * rows[..., 5:]


def network(name: str, data: Path) -> tuple[nn.Module, list[Tensor]]:
    """A model with seeded weights, and batches: the first four are for calibration."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if name in TIMM:
        import_timm()
        return random_network(name), [torch.randn(2, 3, 224, 224, generator=generator) for _ in range(12)]
    if name == "unet":
        return UNet().eval(), [torch.randn(2, 3, 64, 64, generator=generator) for _ in range(12)]
    if name == "yolox_nano":
        coco = data / "coco"
        if not coco.is_dir():
            return Scores(YoloxNano()).eval(), [
                255 * torch.rand(2, 3, 416, 416, generator=generator) for _ in range(12)
            ]
        return Scores(load_yolox(coco)).eval(), load_pictures(coco, "val2017", 24).batches(2)
    tokens = [torch.randint(0, 1000, (2, 24), generator=generator) for _ in range(12)]
    if name == "lstm_tagger":
        return Tagger().eval(), tokens
    import_timm()  # makes torchvision importable, which transformers looks for
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    bert = BertForSequenceClassification(BertConfig(vocab_size=1000, num_labels=10, return_dict=False, **sizes))
    return _First(bert).eval(), tokens


class _First(nn.Module):
    """The first of what a model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)[0]


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


def own_kernels(model: nn.Module, batches: list[Tensor], folder: Path) -> int:
    """The same of the model that ONNX Runtime's quantizer makes from the float one."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    torch.onnx.export(model, (batches[0],), folder / "float.onnx", dynamo=True, verbose=False, external_data=False)
    quant_pre_process(str(folder / "float.onnx"), str(folder / "clean.onnx"), skip_symbolic_shape=True)
    import onnx

    name = onnx.load(folder / "clean.onnx").graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter([{name: batch.numpy()} for batch in batches[:4]])

        def get_next(self) -> Any:
            return next(self.rows, None)

    quantize_static(
        str(folder / "clean.onnx"), str(folder / "own.onnx"), Reader(), quant_format=QuantFormat.QDQ, per_channel=True
    )
    return sum(kernels(folder / "own.onnx").values())


def in_openvino(path: Path, batches: list[Tensor]) -> tuple[int, list[np.ndarray[Any, Any]]]:
    """How many ops run on 8 bits, and the results."""
    import openvino as ov

    compiled = ov.Core().compile_model(str(path), "CPU")
    used = [op.get_rt_info()["runtimePrecision"].astype(str) for op in compiled.get_runtime_model().get_ordered_ops()]
    return sum(each in ("i8", "u8") for each in used), [compiled([batch.numpy()])[0] for batch in batches]


def agreement(wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any], least: float) -> float:
    """The share of places whose first class is the same, of those where the reference is so sure of it."""
    axis = 1 if wanted.ndim == 4 else -1
    sure = wanted.max(axis) >= least
    return float((wanted.argmax(axis) == found.argmax(axis))[sure].mean()) if sure.any() else 1.0


def measure(name: str, peer: bool, data: Path) -> str:
    model, batches = network(name, data)
    least = 0.05 if name == "yolox_nano" else -np.inf
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        counts, rates = [], []
        for target in ("onnxruntime", "openvino"):
            quantized = fq.quantize(model, batches[:4], target=target, engine="reference")
            path = fq.export_onnx(quantized, folder / f"{target}.onnx", batches[0])
            with torch.no_grad():
                wanted = [quantized(batch).numpy() for batch in batches[4:]]
            if target == "onnxruntime":
                counts.append(sum(kernels(path).values()))
                session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
                feed = session.get_inputs()[0].name
                found = [session.run(None, {feed: batch.numpy()})[0] for batch in batches[4:]]
            else:
                count, found = in_openvino(path, batches[4:])
                counts.append(count)
            rates.append(agreement(np.concatenate(wanted), np.concatenate(found), least))
        own = str(own_kernels(model, batches, folder)) if peer else "-"
    return f"{name:24} {counts[0]:8} {own:>8} {counts[1]:9} {rates[0]:11.2%} {rates[1]:11.2%}"


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
    parser.add_argument("--networks", nargs="*", default=[*TIMM, "yolox_nano", "unet", "lstm_tagger", "bert_tiny"])
    add_data_argument(parser)
    parser.add_argument("--no-peer", action="store_true", help="leave ONNX Runtime's own quantizer out")
    parser.add_argument("--cost", action="store_true", help="only the cost of an export")
    options = parser.parse_args()
    if options.cost:
        print(cost())
        return
    print(f"{'network':24} {'kernels':>8} {'own':>8} {'openvino':>9} {'agree ORT':>11} {'agree OV':>11}")
    for name in options.networks:
        print(measure(name, not options.no_peer, options.data), flush=True)


if __name__ == "__main__":
    main()
