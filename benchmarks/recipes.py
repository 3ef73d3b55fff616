"""Recipes with results: measures what docs/results.md and the lines of README.md show, and writes them.

    python benchmarks/recipes.py                                   all scores, hours
    python benchmarks/recipes.py --model resnet20 --method "PTQ"   one method, or those that begin so; others stay
    python benchmarks/recipes.py --model resnet20 --latency        times in place of scores; the machine must be quiet
    python benchmarks/recipes.py --list                            what there is
    python benchmarks/recipes.py --check                           the bars, on what the file has

Each row has the day on which it was measured, and a letter for machine and versions.
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
from _rows import Page, Row, placed, read_page, with_short_lines

ROOT = Path(__file__).resolve().parents[1]
RESULTS, README = ROOT / "docs/results.md", ROOT / "README.md"
PACKAGES = ("torch", "onnxruntime", "openvino", "nncf", "pycocotools")
MODELS = ("resnet20", "resnet32", "lite0", "yolox")
# (model, method, what it is compared with, how much less it may be)
BARS = (
    ("YOLOX-Nano, COCO", "PTQ W8A8", "float", 0.7),
    ("YOLOX-Nano, COCO", "PTQ W8A8 power-of-two", "float", 3.0),
    ("YOLOX-Nano, COCO", "QAT W8A8 power-of-two", "float", 1.5),
    ("YOLOX-Nano, COCO", "QAT W8A8 power-of-two", "PTQ W8A8 power-of-two", 0.0),
    ("ResNet-20, CIFAR-10", "QAT W8A8 power-of-two", "float", 0.2),
    ("ResNet-20, CIFAR-10", "QAT W4A4", "float", 3.0),
)
HEAD = """# Results of recipes

`python benchmarks/recipes.py --data DIR` measures these rows and writes this file; the detector's recipe is that of
`examples/detection.py`. Where training has several recipes or states to choose among, held-out training pictures do.

- CIFAR-10: 512 pictures for calibration, 5,000 for training (1,000 of them held out), 2,000 test pictures.
- COCO: 64 and 126 pictures of train2017, 128 of val2017, mAP@0.5:0.95 by pycocotools.
- EfficientNet-Lite0: 64 crops of seven photographs for calibration, 64 of their other halves for testing; no labels.
- Scores of fxquant are of the plain QDQ graph. kB: the saved state_dict. Peers run on their own int8 kernels, whose
  sums may saturate on a CPU without VNNI; `benchmarks/accuracy.py` has them with exact sums.
- PTQ runs the algorithms of `quantize` (`BALANCED`; `POWERS_OF_TWO` for such scales) unless a row says so. The rows
  of YOLOX-Nano with powers of two or rules of the example run `FAST`.
- QAT of the classifiers: LSQ, TQT for powers of two; all layers have the bits of the row, the first and the last, too.
  Training starts from the frozen PTQ model, with the float network as teacher on augmented pictures, and that model
  stays as it is if training brings it no nearer to the teacher on the held-out ones ("as calibrated"). Of three rates
  for W8A8 held-out pictures choose one; rows of W8A8 with a rate of 3e-05 were measured before, with that alone.
- Power-of-two rows of the classifiers have one scale a tensor, as NPUs do, and no sign behind a relu, as in the paper
  on TQT; "signed": s8 activations, which have 7 bits there. Those of YOLOX-Nano are signed, with a scale for each
  channel of weights and of inputs of depthwise convolutions.
- ms: batch 1, one thread, all in turns. "ms torch" is `engine="onednn"`, float and torch.ao; the other peers stand in
  the column of what runs them. Trained models run the kernels of calibrated ones.
- torch.ao folds no batch norms of EfficientNet-Lite0, whose convolutions are of a class of their own, and has the boxes
  and scores of YOLOX-Nano on one grid, since they are joined: its scores are multiples of 0.04. ONNX Runtime's own tool
  has its default ranges, MinMax.
- Rows of one day may be of several commits. An empty cell, or a method that `--list` names and the table has not, was
  not measured.
"""


def load(name: str, data: Path) -> Any:
    """The model with its methods."""
    if name == "yolox":
        from _detection import Yolox

        return Yolox(data / "coco")
    from _classification import cifar, lite0

    return lite0() if name == "lite0" else cifar(int(name.removeprefix("resnet")), data)


def setting() -> str:
    """The machine, and the versions of what is installed."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}; {', '.join(found)}"


def check(console: Console, page: Page) -> bool:
    """Say how far each method is below what it is compared with; False if a bar is missed."""
    values = {key: float(row["value"]) for key, row in page.rows.items() if row["value"]}
    good = True
    for model, method, other, loss in BARS:
        if (model, method) not in values or (model, other) not in values:
            console.print(f"bar: {model}, {method}: not measured")
            continue
        below = values[model, other] - values[model, method]
        met = below <= loss + 1e-9
        good = good and met
        verdict = "met" if met else "MISSED"
        console.print(f"bar: {model}, {method}: {below:.2f} below {other}, at most {loss}: {verdict}")
    return good


def scores(console: Console, methods: dict[str, Callable[[], Row]], asked: str, put: Callable[[Row], None]) -> None:
    """Measure one method after the other; what fails is said, and left out."""
    for method in [asked] if asked in methods else [each for each in methods if each.startswith(asked)]:
        try:
            row = methods[method]()
        except (ImportError, RuntimeError, fq.FxQuantError) as error:  # a peer that does not take the model
            console.print(f"{method}: left out, {type(error).__name__}: {str(error)[:200]}")
            continue
        console.print(f"{row.model}, {method}: {row.metric} {row.value:.2f} {row.note}")
        put(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_argument(parser)
    parser.add_argument("--model", choices=MODELS, help="measure the rows of one model only")
    parser.add_argument("--method", default="", help="measure this method, or those that begin so")
    parser.add_argument("--latency", action="store_true", help="measure times, not scores: wants a quiet machine")
    parser.add_argument("--runs", type=Path, help="directory for training that goes on where it was cut; classifiers")
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    parser.add_argument("--check", action="store_true", help="check the bars on what was measured, and measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="of another file: README.md stays as it is")
    args = parser.parse_args()

    console = Console(width=120, soft_wrap=True)
    page = read_page(args.out.read_text()) if args.out.exists() else Page()
    if args.check:
        raise SystemExit(0 if check(console, page) else 1)
    torch.manual_seed(0)
    if not args.data.is_dir():
        raise SystemExit(f"{args.data} does not exist. Give the directory of weights and pictures with --data DIR.")
    order = list(page.rows)

    def put(row: Row) -> None:
        page.put(row, setting())
        args.out.write_text(f"{HEAD}\n{page.text(order)}\n")
        if args.out == RESULTS:
            README.write_text(with_short_lines(README.read_text(), read_page(RESULTS.read_text())))

    for name in MODELS if args.model is None else (args.model,):
        try:
            model = load(name, args.data)
        except FileNotFoundError as error:
            raise SystemExit(
                f"{name}: {error.filename} is missing. Give the directory that has it with --data DIR."
            ) from None
        model.runs = args.runs
        methods = model.methods()
        order = placed(order, model.name, methods)
        if args.list:
            console.print("\n".join(f"{name}: {method}" for method in methods))
        elif args.latency:
            from _times import time_rows

            for row in time_rows(model.name, model.model, *model.timed(), model.calibration):
                console.print(f"{row.model}, {row.method}: {row.times}")
                put(row)
        else:
            scores(console, methods, args.method, put)
    check(console, page)


if __name__ == "__main__":
    main()
