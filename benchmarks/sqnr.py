"""Output SQNR of int8 networks with random weights, against torch.ao FX with its x86 default in the same run.

Both calibrate on the same batches and are compared with the float network on the same other pictures. The bar: static
fxquant is at least as good on every architecture.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

import fxquant as fq
from _models import RANDOM_NETWORKS, pictures, random_network
from _peers import fxquant_int8_ops, run, torch_ao_int8_ops, torch_ao_static, weighted_ops
from fxquant.numerics.affine import sqnr_db

COLUMNS = ("network", "fxquant", "torch.ao", "gain", "int8 ops", "torch.ao's", "dynamic", "weight only")


def compare(name: str, batches: int, batch_size: int, seed: int) -> tuple[list[str], bool]:
    """The table row of one network, and whether it meets the bar."""
    model = random_network(name, seed)
    calibration = pictures("calibration", batches=batches, batch_size=batch_size, seed=seed)
    evaluation = pictures("evaluation", batches=batches, batch_size=batch_size, seed=seed)
    wanted = run(model, evaluation)
    example = (calibration[0],)

    static = fq.quantize(model, calibration, example_inputs=example)
    peer = torch_ao_static(model, calibration)
    ours, theirs = (sqnr_db(wanted, run(q, evaluation)) for q in (static, peer))
    others = []
    for mode in ("dynamic", "weight_only"):
        quantized = fq.quantize(model, mode=mode, example_inputs=example)
        others.append(sqnr_db(wanted, run(quantized, evaluation)))
    total = weighted_ops(model)
    shares = [f"{fxquant_int8_ops(static)}/{total}", f"{torch_ao_int8_ops(peer)}/{total}"]
    row = [name, f"{ours:.1f}", f"{theirs:.1f}", f"{ours - theirs:+.1f}", *shares, *(f"{v:.1f}" for v in others)]
    return row, ours >= theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=RANDOM_NETWORKS, help="timm names")
    parser.add_argument("--batches", type=int, default=4, help="batches for calibration, and as many for evaluation")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    table = Table(title="Output SQNR in dB, and weighted ops in int8", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "network" else "right")
    rows = [compare(name, args.batches, args.batch_size, args.seed) for name in args.models]
    for row, _ in rows:
        table.add_row(*row)
    console = Console(width=110)
    console.print(table)
    console.print(f"bar: fxquant >= torch.ao on every network: {'met' if all(met for _, met in rows) else 'MISSED'}")


if __name__ == "__main__":
    main()
