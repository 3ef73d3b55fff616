"""Recipes with results: measures what docs/results.md shows, and writes it.

    python benchmarks/recipes.py                                   all rows, hours
    python benchmarks/recipes.py --model resnet20 --method "PTQ"   rows of a model whose method begins so; others stay
    python benchmarks/recipes.py --list                            what there is
    python benchmarks/recipes.py --latency                         times as well, for which the machine must be quiet

Each row has the day on which it was measured. The bars are checked on what the file then has.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import fxquant as fq
from _models import add_data_argument
from _rows import ENGINES, Row, read_rows, write_rows

RESULTS = Path(__file__).resolve().parents[1] / "docs/results.md"
PACKAGES = ("torch", "onnxruntime", "openvino", "nncf", "pycocotools")
MODELS = ("resnet20", "resnet32", "lite0", "yolox")
# (model, method, what it is compared with, how much less it may be)
BARS = (
    ("YOLOX-Nano, COCO", "PTQ W8A8", "float", 0.7),
    ("YOLOX-Nano, COCO", "PTQ power-of-two", "float", 3.0),
    ("YOLOX-Nano, COCO", "QAT power-of-two", "float", 1.5),
    ("YOLOX-Nano, COCO", "QAT power-of-two", "PTQ power-of-two", 0.0),
    ("ResNet-20, CIFAR-10", "QAT W8A8 power-of-two", "float", 0.2),
    ("ResNet-20, CIFAR-10", "QAT W4A4", "float", 3.0),
)


def load(name: str, data: Path) -> Any:
    """The model with its methods."""
    if name == "yolox":
        from _detection import Yolox

        return Yolox(data / "coco")
    from _classification import Cifar, Lite

    return Lite() if name == "lite0" else Cifar(int(name.removeprefix("resnet")), data)


def versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def with_latency(row: Row, model: Any, method: str) -> Row:
    """The row with times of one example on every engine that is installed."""
    if not method.startswith("PTQ W8A8") or "power" in method:
        return row
    batches = model.calibration
    quantized = fq.quantize(model.model, batches)
    found = fq.benchmark(quantized, (batches[0][:1],), float_model=model.model, seconds=1.0, show=False)
    times = {r.name: 1e3 * r.timing.median for r in found.rows if r.name in ENGINES}
    return Row(
        **{name: getattr(row, name) for name in ("model", "method", "metric", "value", "size", "note")}, latency=times
    )


def head(settings: str) -> str:
    return f"""# Results of recipes

`python benchmarks/recipes.py --data DIR` measures these rows and writes this file; recipes are those of `examples/`.
Pictures that scores come from took no part in any choice: learning rates were chosen on held-out training pictures.
CIFAR-10: 512 pictures for calibration, 5,000 for training, 2,000 test pictures. COCO: 64 and 126 pictures of train2017,
128 of val2017, mAP@0.5:0.95 by pycocotools. Scores are of the plain QDQ graph; sizes are of the saved state_dict;
latency is of batch 1. An empty cell was not measured.

{settings}
"""


def check(console: Console, path: Path) -> bool:
    rows = read_rows(path.read_text())
    good = True
    for model, method, other, loss in BARS:
        if (model, method) in rows and (model, other) in rows:
            below = float(rows[model, other][3]) - float(rows[model, method][3])
            met = below <= loss + 1e-9
            good = good and met
            console.print(
                f"bar: {model}, {method}: {below:.2f} below {other}, at most {loss}: {'met' if met else 'MISSED'}"
            )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_argument(parser)
    parser.add_argument("--model", choices=MODELS, help="measure the rows of one model only")
    parser.add_argument("--method", default="", help="measure the methods that begin with this")
    parser.add_argument("--latency", action="store_true", help="measure times as well: wants a quiet machine")
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()

    console = Console(width=120)
    torch.manual_seed(0)
    if not args.data.is_dir():
        raise SystemExit(f"{args.data} does not exist. Give the directory of weights and pictures with --data DIR.")
    order: list[tuple[str, str]] = list(read_rows(args.out.read_text())) if args.out.exists() else []
    for name in MODELS if args.model is None else (args.model,):
        model = load(name, args.data)
        methods: dict[str, Callable[[], Row]] = model.methods()
        order += [(model.name, method) for method in methods if (model.name, method) not in order]
        for method, measure in methods.items():
            if not method.startswith(args.method):
                continue
            if args.list:
                console.print(f"{name}: {method}")
                continue
            try:
                row = measure()
            except (ImportError, RuntimeError) as error:  # a peer that is not here, or does not take the model
                console.print(f"{name}, {method}: left out, {type(error).__name__}: {str(error)[:200]}")
                continue
            row = with_latency(row, model, method) if args.latency else row
            console.print(f"{name}, {method}: {row.metric} {row.value:.2f} {row.note}")
            write_rows(args.out, [row], order, head(f"{machine()}; {versions()}."))
    if args.out.exists():
        check(console, args.out)


if __name__ == "__main__":
    main()
