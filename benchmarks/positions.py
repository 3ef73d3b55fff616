"""Positions of power-of-two scales on target xint8: chosen together, against greedy repair as vendors' tools do it.

EfficientNet-Lite0   output SQNR on natural pictures, beside the per-channel default of target generic
YOLOX-Nano           output SQNR and mAP on COCO pictures (--data DIR, with coco/ and the architecture in --yolox FILE)

greedy repair   each scale by its own tensor's least square error; tensors that share a scale aligned; broken limits
                repaired one by one
same, greedy    weights and biases as `quantize` makes them for the target; limits repaired one by one
joint           algorithms.POWERS_OF_TWO: the same, with positions chosen together, and moved by what they do to outputs
default         quantize(model, data, target="xint8"), all in int8

All limits hold in all of them. The bars: joint at least 1 dB above greedy repair; EfficientNet-Lite0 at most 6 dB below
per channel; YOLOX-Nano within 3.0 mAP of float.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fxquant as fq
from _models import LITE, add_data_argument, efficientnet_lite0, pictures
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.positions.repair import repair

GREEDY = (fq.algorithms.BiasCorrection(),)


def ways(model: nn.Module, calibration: list[Tensor], per_channel: bool) -> dict[str, nn.Module]:
    """The model on xint8 in all ways; and per channel, with float scales."""
    data = [(batch,) for batch in calibration]
    options: dict[str, Any] = {"target": "xint8", "engine": "reference", "precision": "int8"}
    with mock.patch("fxquant.passes.solve_positions.solve", repair):
        found = {
            "greedy repair": fq.quantize(model, data, algorithms=GREEDY, **options),
            "same, greedy": fq.quantize(model, data, algorithms=fq.algorithms.BALANCED, **options),
        }
    found["joint"] = fq.quantize(model, data, algorithms=fq.algorithms.POWERS_OF_TWO, **options)
    found["default"] = fq.quantize(model, data, **options)
    for name, made in found.items():
        assert not fq.check_target(made, "xint8"), name
    if per_channel:
        found["per channel"] = fq.quantize(model, data, **{**options, "target": "generic"})
    return found


@torch.no_grad()
def outputs(model: nn.Module, batches: list[Tensor]) -> Tensor:
    return torch.cat([model(batch) for batch in batches])


def lite(args: argparse.Namespace, table: Table) -> None:
    model = efficientnet_lite0()
    options: dict[str, Any] = {"batch_size": args.batch_size, "statistics": LITE, "seed": args.seed}
    calibration = pictures("calibration", batches=args.batches, **options)
    evaluation = pictures("evaluation", batches=args.batches, **options)
    wanted = outputs(model, evaluation)
    for name, made in ways(model, calibration, per_channel=True).items():
        table.add_row("EfficientNet-Lite0", name, f"{sqnr_db(wanted, outputs(made, evaluation)):.2f}", "")


def yolox(args: argparse.Namespace, table: Table) -> None:
    from PIL import Image
    from safetensors.torch import load_file

    spec = importlib.util.spec_from_file_location("yolox", args.yolox)
    assert spec is not None and spec.loader is not None
    recipe: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    coco = Path(args.data) / "coco"
    model = recipe.YoloxNano()
    model.load_state_dict(load_file(coco / "yolox-nano.safetensors"))
    model.eval()

    def read(part: str, count: int) -> tuple[list[Tensor], list[tuple[np.ndarray, np.ndarray]]]:
        images, truths = [], []
        for row in json.loads((coco / f"{part}.json").read_text())[:count]:
            pixels, factor = recipe.letterbox(Image.open(coco / part / row["file"]))
            boxes = np.array(row["boxes"], float).reshape(-1, 5)
            images.append(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
            truths.append((boxes[:, 1:] * factor, boxes[:, 0].astype(int)))
        return images, truths

    calibration, _ = read("train2017", args.pictures // 2)
    evaluation, truths = read("val2017", args.pictures)
    wanted = outputs(model, evaluation)

    def precision(rows: Tensor) -> str:
        return f"{recipe.average_precision(recipe.detections(rows.numpy()), truths)[0]:.2f}"

    table.add_row("YOLOX-Nano", "float", "", precision(wanted))
    for name, made in ways(model, calibration, per_channel=False).items():
        found = outputs(made, evaluation)
        table.add_row("YOLOX-Nano", name, f"{sqnr_db(wanted, found):.2f}", precision(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_argument(parser)
    parser.add_argument("--only", choices=("lite", "yolox"), help="run one part")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--pictures", type=int, default=128, help="of COCO; half as many for calibration")
    parser.add_argument("--yolox", type=Path, help="a file with the class YoloxNano and its average precision")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    table = Table(title="Target xint8, all limits kept", title_justify="left")
    for column in ("network", "positions", "SQNR dB", "mAP"):
        table.add_column(column, justify="left" if column in ("network", "positions") else "right")
    if args.only != "yolox":
        lite(args, table)
    if args.only != "lite" and args.yolox is not None:
        yolox(args, table)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
