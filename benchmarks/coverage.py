"""How many architectures from torchvision, timm and transformers come out quantized, beside torch.ao FX.

For each: captured how, the share of weighted ops in int8, output SQNR against float, seconds to quantize, and whether
torch.ao's FX mode runs at all. Random weights and small configurations: this measures coverage, not accuracy (what a
detection model with random weights picks changes with the smallest rounding). The prepared model is compared with
float, too, before anything is rounded. Each model runs in a process of its own, so that one that crashes costs one row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import subprocess
import sys
import time
import warnings
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq
from _zoo import build, entries
from fxquant.engines.table import as_engine
from fxquant.graph.region import origin_of
from fxquant.numerics.affine import sqnr_db


def floats(value: Any) -> list[Tensor]:
    """The float tensors of a model's output, whatever holds them."""
    leaves = tree_leaves(dict(value) if hasattr(value, "items") else value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def worst_sqnr(expected: Any, actual: Any) -> float:
    """Over the outputs of the same shape; detection models may return another number of boxes."""
    pairs = zip(floats(expected), floats(actual), strict=False)
    found = [sqnr_db(a, b) for a, b in pairs if a.shape == b.shape and a.numel() and bool(a.isfinite().all())]
    return min(found) if found else math.nan


def measure(name: str, engine: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, args, kwargs = build(name)
    row: dict[str, Any] = {"name": name}
    with torch.no_grad():
        expected = model(*args, **kwargs)
    times = [time.perf_counter()]
    try:
        target = as_engine(engine).target()
        mapping = fq.get_default_qconfig_mapping(target.name)
        prepared = fq.prepare_fx(model, mapping, args, example_kwargs=kwargs, target=target)
        times.append(time.perf_counter())
        with torch.no_grad():  # what calibrates, and shows that nothing changed yet
            row["prepared"] = worst_sqnr(expected, prepared(*args, **kwargs))
        times.append(time.perf_counter())
        quantized = fq.convert_fx(prepared, engine=engine)
        times.append(time.perf_counter())
        with torch.no_grad():
            row["sqnr"] = worst_sqnr(expected, quantized(*args, **kwargs))
        row["seconds"] = times[-1] - times[0]
        row["stages"] = [round(after - before, 1) for before, after in itertools.pairwise(times)]
        row["share"] = fq.explain(quantized).int8_share
        row["how"] = captured_how(quantized)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    row["torch_ao"] = try_torch_ao(model, args, kwargs)
    return row


def captured_how(model: nn.Module) -> str:
    from fxquant.graph.region import regions

    found = list(regions(model))
    if len(found) == 1 and not found[0][0]:
        return origin_of(found[0][1]).method
    return f"piecewise, {len(found)} regions"


def try_torch_ao(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    try:
        example = args or tuple(kwargs.values())
        prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), example)
        with torch.no_grad():
            expected = model(*args, **kwargs)
            prepared(*args, **kwargs)
            return f"{worst_sqnr(expected, convert_fx(prepared)(*args, **kwargs)):.1f}"
    except Exception as error:
        return f"fails: {type(error).__name__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the models whose name contains this")
    parser.add_argument("--engine", default="onednn", help="onednn, onnxruntime, openvino, auto or reference")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one model")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.one:
        print(json.dumps(measure(args.one, args.engine)))
        return
    rows = [in_process(name, args.engine, args.timeout) for name in entries() if args.only in name]
    show(rows)


def in_process(name: str, engine: str, timeout: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--engine", engine]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        row = {"name": name, "error": f"over {timeout} s"}
    except (subprocess.CalledProcessError, json.JSONDecodeError, IndexError) as error:
        tail = str(getattr(error, "stderr", "")).strip().splitlines()[-1:]
        row = {"name": name, "error": f"crash: {' '.join(tail)[:120]}"}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Architectures quantized", title_justify="left")
    columns = ("model", "captured", "weighted ops in int8", "prepared, dB", "SQNR, dB", "seconds", "torch.ao FX, dB")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        if "error" in row:
            table.add_row(row["name"], f"[red]{row['error']}", "", "", "", "", row.get("torch_ao", ""))
        else:
            numbers = (f"{row['prepared']:.0f}", f"{row['sqnr']:.1f}", f"{row['seconds']:.1f}")
            table.add_row(row["name"], row["how"], f"{row['share']:.0%}", *numbers, row["torch_ao"])
    console = Console(width=150)
    console.print(table)
    done = [row for row in rows if "error" not in row]
    peer = sum("fails" not in row.get("torch_ao", "fails") for row in rows)
    share = sum(row["share"] for row in done) / max(len(done), 1)
    console.print(
        f"fxquant runs {len(done)} of {len(rows)}, {share:.1%} of weighted ops in int8 on average (aim: all, 95%)"
    )
    console.print(f"torch.ao FX runs {peer} of {len(rows)}")


if __name__ == "__main__":
    main()
