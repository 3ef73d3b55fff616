"""Latency of int8 models beside the peers: all ways to run a model in one process, interleaved.

    python benchmarks/latency.py --models resnet18 --threads 1 --batches 1

A cell is the median in milliseconds. The bars, on each row:
  onednn       <= 1.0 x the faster of torch.ao's scripted models; <= 0.7 x the best peer on transformers; float eager
               at least 2.5 x slower on ResNets
  onnxruntime  <= 1.03 x the model of ONNX Runtime's own quantizer
  openvino     <= 1.03 x the model of NNCF
  native       <= the share of the best of all peers in NATIVE: with one thread and batch 1, and elsewhere; else 1.0
  auto         <= 1.02 x the best of all peers
A peer that cannot take a model shows "-", and what it said is printed below the table.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fxquant as fq
from _models import import_timm, pictures, random_network
from _peers import nncf_static, onnxruntime_file, onnxruntime_runner, openvino_runner, torch_ao_runner
from fxquant.engines.timing import Timing, time_interleaved

MODELS = (
    *("resnet18", "resnet50", "mobilenetv2_100", "efficientnet_b0", "tf_efficientnet_lite0", "yolox_nano"),
    *("vit_tiny_patch16_224", "bert_base"),
)
TRANSFORMERS = ("vit_tiny_patch16_224", "bert_base")
PEERS = ("float", "float compiled", "ao eager", "ao x86", "ao onednn", "ort", "nncf openvino")
OURS = ("onednn", "native", "onnxruntime", "openvino")
# the bars of the native engine: one thread and batch 1, other rows
NATIVE = {
    **{"mobilenetv2_100": (0.5, 0.65), "efficientnet_b0": (0.42, 0.55), "tf_efficientnet_lite0": (0.5, 0.65)},
    **{"yolox_nano": (0.55, 0.65), "resnet18": (0.93, 1.0), "resnet50": (0.93, 1.0)},
    **{"vit_tiny_patch16_224": (0.7, 0.8), "bert_base": (0.85, 0.92)},
}
LENGTH = 128

Call = Callable[[], object]
Run = Callable[[Tensor], object]


class Encoder(nn.Module):
    """The layers of a BERT-base encoder, from embeddings to hidden states; random weights."""

    def __init__(self, layers: int = 12, seed: int = 0) -> None:
        super().__init__()
        import_timm()  # transformers imports torchvision too, and fails where timm would
        from transformers import BertConfig, BertModel

        torch.manual_seed(seed)
        config = BertConfig(num_hidden_layers=layers, attn_implementation="sdpa")
        self.layers = BertModel(config, add_pooling_layer=False).encoder.layer

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def model_and_data(name: str, batch: int, layers: int) -> tuple[nn.Module, list[Tensor]]:
    if name == "bert_base":
        generator = torch.Generator().manual_seed(0)
        return Encoder(layers).eval(), [torch.randn(batch, LENGTH, 768, generator=generator) for _ in range(2)]
    if name == "yolox_nano":  # with random weights and pictures: its time does not depend on them
        from _yolox import SIZE, YoloxNano  # of examples/, which _models puts on the path

        torch.manual_seed(0)
        return YoloxNano().eval(), [255 * torch.rand(batch, 3, SIZE, SIZE) for _ in range(2)]
    return random_network(name), pictures("calibration", batches=2, batch_size=batch)


class Contender:
    """One way to run a model; made once, opened for each number of threads."""

    def __init__(self, make: Callable[[], Callable[[int], Run]]) -> None:
        self.error = ""
        self.open: Callable[[int], Run] | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.open = make()
        except Exception as error:  # peers fail in ways of their own; the run goes on
            self.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"

    def at(self, threads: int, x: Tensor) -> Call | None:
        if self.open is None:
            return None
        try:
            call = functools.partial(self.open(threads), x)
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
        except Exception as error:
            self.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return None
        return call


def contenders(model: nn.Module, data: list[Tensor], names: tuple[str, ...]) -> dict[str, Contender]:
    """The peers, then our engines."""
    channels_last = data[0].dim() == 4

    def ours(engine: str) -> Callable[[int], Run]:
        quantized = fq.quantize(model, data, example_inputs=(data[0],), engine=engine)
        return lambda threads: quantized

    def eager() -> Callable[[int], Run]:
        return lambda threads: model

    def compiled() -> Callable[[int], Run]:
        torch._dynamo.reset()
        made = torch.compile(model)
        return lambda threads: made

    def ao(engine: str, *, scripted: bool) -> Callable[[int], Run]:
        run = torch_ao_runner(model, data, engine, scripted=scripted, channels_last=channels_last)
        return lambda threads: run

    def ort() -> Callable[[int], Run]:
        file = onnxruntime_file(model, data)
        return lambda threads: onnxruntime_runner(file, threads)

    def nncf() -> Callable[[int], Run]:
        quantized = nncf_static(model, data)
        return lambda threads: openvino_runner(quantized, threads)

    makers: dict[str, Callable[[], Callable[[int], Run]]] = {
        "float": eager,
        "float compiled": compiled,
        "ao eager": functools.partial(ao, "x86", scripted=False),
        "ao x86": functools.partial(ao, "x86", scripted=True),
        "ao onednn": functools.partial(ao, "onednn", scripted=True),
        "ort": ort,
        "nncf openvino": nncf,
        **{engine: functools.partial(ours, engine) for engine in OURS},
    }
    return {name: Contender(makers[name]) for name in makers if name in names}


def verdicts(name: str, times: dict[str, Timing], single: bool) -> list[str]:
    """The bars that this row misses, each with its figure; `single` is one thread and batch 1."""
    median = {case: timing.median for case, timing in times.items()}
    missed = []

    def bar(what: str, ours: str, peers: tuple[str, ...], factor: float) -> None:
        found = [median[peer] for peer in peers if peer in median]
        if found and ours in median and median[ours] > factor * min(found):
            missed.append(f"{what} {median[ours] / min(found):.2f} > {factor:g}")

    auto = min((case for case in OURS if case in median), key=lambda case: median[case], default="")
    bar("onednn/ao", "onednn", ("ao x86", "ao onednn"), 1.0)
    if name in TRANSFORMERS:
        bar("onednn/best", "onednn", PEERS, 0.7)
    if name.startswith("resnet"):
        bar("onednn/float", "onednn", ("float",), 1 / 2.5)
    bar("onnxruntime/ort", "onnxruntime", ("ort",), 1.03)
    bar("openvino/nncf", "openvino", ("nncf openvino",), 1.03)
    bar("native/best", "native", PEERS, NATIVE.get(name, (1.0, 1.0))[0 if single else 1])
    bar(f"auto ({auto})/best", auto, PEERS, 1.02)
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="timm names, bert_base or yolox_nano")
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 16))
    parser.add_argument("--only", nargs="+", choices=(*PEERS, *OURS), default=(*PEERS, *OURS), help="which contenders")
    parser.add_argument("--seconds", type=float, default=30.0, help="for a row, after at least five rounds")
    parser.add_argument("--layers", type=int, default=12, help="of bert_base")
    args = parser.parse_args()

    logging.disable(logging.WARNING)
    console = Console(width=200)
    console.print(f"{cpu()}, torch {torch.__version__}, {os.cpu_count()} cores; medians in ms")
    columns = tuple(case for case in (*PEERS, *OURS) if case in args.only)
    for name in args.models:
        table = Table(title=name, title_justify="left")
        for column in ("batch", "threads", *columns, "misses"):
            table.add_column(column, justify="left" if column == "misses" else "right")
        errors: dict[str, str] = {}
        for batch in args.batches:
            model, data = model_and_data(name, batch, args.layers)
            made = contenders(model, data, columns)
            for threads in args.threads:
                torch.set_num_threads(threads)
                calls = {case: call for case, each in made.items() if (call := each.at(threads, data[0])) is not None}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    times = time_interleaved(calls, seconds=args.seconds)
                missed = "; ".join(verdicts(name, times, batch == threads == 1)) or "none"
                cells = [f"{times[case].median:.2f}" if case in times else "-" for case in columns]
                table.add_row(str(batch), str(threads), *cells, missed)
            errors.update({case: each.error for case, each in made.items() if each.error})
        console.print(table)
        for case, error in errors.items():
            console.print(f"{case}: {error}", style="dim", highlight=False)
        sys.stdout.flush()


def cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
