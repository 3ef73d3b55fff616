"""How far torch's kernels are from the best peer on transformers: the kernels alone against the peer's whole model.

    python benchmarks/floor.py --models bert_base --layers 2 --batch 16 --threads 2

Every int8 linear and every attention of the lowered model is called in a loop on the tensors it gets in the model, with
warm caches and nothing in between. Their sum is a floor for the oneDNN engine: layer norms, quantizing and calls come
on top. `share` is that floor divided by the peer's time.
"""

from __future__ import annotations

import argparse
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, fx

import fxquant as fq
from _peers import nncf_static, openvino_runner
from fxquant.core.graph import Region
from fxquant.engines.onednn_kernels import LinearKernel
from fxquant.engines.timing import time_interleaved
from latency import TRANSFORMERS, model_and_data

Call = Callable[[], object]


class Collector(fx.Interpreter):
    """Runs a lowered graph and keeps its calls of linears and of attention."""

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.linears: list[tuple[Call, int]] = []  # with their multiply-adds
        self.attentions: list[Call] = []

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kernel = self.fetch_attr(target)
        if isinstance(kernel, LinearKernel):
            rows = args[0].numel() // args[0].shape[-1]
            kept = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
            self.linears.append((lambda: kernel(*kept), rows * kernel.holder.weight.numel()))
        return super().call_module(target, args, kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is F.scaled_dot_product_attention:
            self.attentions.append(lambda: F.scaled_dot_product_attention(*args, **kwargs))
        return super().call_function(target, args, kwargs)


def total(calls: list[Call], seconds: float) -> float:
    """The sum of the fastest times of each, measured by itself, in ms."""
    return sum(time_interleaved({"call": call}, seconds=seconds)["call"].low for call in calls)


def row(name: str, layers: int, batch: int, seconds: float) -> list[float]:
    """Linears, their rate in GMAC/s, attention, the floor, the engine, the peer, the floor's share of the peer."""
    model, data = model_and_data(name, batch, layers)
    quantized = fq.quantize(model, data, example_inputs=(data[0],), engine="onednn")
    assert isinstance(quantized, Region)
    collector = Collector(quantized)
    collector.run(data[0])
    linears = total([call for call, _ in collector.linears], seconds)
    attention = total(collector.attentions, seconds)
    peer = openvino_runner(nncf_static(model, data), torch.get_num_threads())
    calls = {"engine": functools.partial(quantized, data[0]), "peer": functools.partial(peer, data[0])}
    whole = time_interleaved(calls, seconds=20 * seconds)
    rate = sum(count for _, count in collector.linears) / linears / 1e6
    floor, best = linears + attention, whole["peer"].median
    return [linears, rate, attention, floor, whole["engine"].median, best, floor / best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=TRANSFORMERS)
    parser.add_argument("--layers", type=int, default=2, help="of bert_base")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="for a kernel, after at least five rounds")
    args = parser.parse_args()

    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    table = Table(title=f"batch {args.batch}, threads {args.threads}; ms", title_justify="left")
    for column in ("model", "linears", "GMAC/s", "attention", "floor", "engine", "NNCF, OpenVINO", "share"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in args.models:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            table.add_row(name, *(f"{cell:.2f}" for cell in row(name, args.layers, args.batch, args.seconds)))
    Console().print(table)


if __name__ == "__main__":
    main()
