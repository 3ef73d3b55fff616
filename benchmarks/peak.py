"""How near the native engine is to what the CPU can do: products in a second of whole models against the measured peak.

    python benchmarks/peak.py --models resnet18 --kernels

One sample, one thread, each kernel's fastest time, without what a call from Python takes. The peak is that of dot
products on bytes in the first cache. The bars: MobileNetV2 at least 60% of it, ResNets 85%.
"""

from __future__ import annotations

import argparse
import logging
import warnings

import torch
from rich.console import Console
from rich.table import Table

import fxquant as fq
from latency import model_and_data

MODELS = ("mobilenetv2_100", "efficientnet_b0", "resnet18", "resnet50", "vit_tiny_patch16_224", "bert_base")
BARS = {"mobilenetv2_100": 0.6, "resnet18": 0.85, "resnet50": 0.85}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="timm names, or bert_base")
    parser.add_argument("--layers", type=int, default=2, help="of bert_base")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kernels", action="store_true", help="show each kernel")
    args = parser.parse_args()

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    table = Table()
    for column in ("model", "machine", "ms", "GMAC/s", "peak", "share", "bar"):
        table.add_column(column, justify="left" if column in ("model", "machine") else "right")
    for name in args.models:
        model, data = model_and_data(name, 1, args.layers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantized = fq.quantize(model, data, example_inputs=(data[0],), engine="native")
        found = fq.profile(quantized, data[0], rounds=args.rounds, show=args.kernels)
        bar = BARS.get(name)
        verdict = "" if bar is None else f"{'met' if found.of_peak >= bar else 'missed'} {bar:.0%}"
        rate = found.of_peak * found.peak
        cells = (f"{found.milliseconds:.2f}", f"{rate:.0f}", f"{found.peak:.0f}", f"{found.of_peak:.0%}", verdict)
        table.add_row(name, found.machine, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
