"""Accuracy of int8 networks with trained weights, beside peers in the same run.

CIFAR-10 ResNets      top-1 on 2,000 test images after calibration on 512; the bar: static within 0.3 points of float
EfficientNet-Lite0    output SQNR and top-1 agreement with float on natural pictures; the bar: SQNR above both peers
speaker twin          an LSTM that int8 alone makes nothing of; the bar: cosine above 0.999 by default, weights int8
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fxquant as fq
from _models import LITE, add_data_argument, cifar_images, cifar_resnet, efficientnet_lite0, pictures
from _peers import Forward, onnxruntime_file, onnxruntime_runner, run, torch_ao_static
from _speaker import SpeakerTwin, power
from fxquant.numerics.affine import sqnr_db

MAX_LOSS = 0.3
MODES = ("static", "dynamic", "weight_only")
PEERS = ("torch.ao x86", "ONNX Runtime percentile")


def fxquant_modes(model: nn.Module, calibration: list[Tensor]) -> dict[str, Forward]:
    example = (calibration[0],)
    return {f"fxquant {mode}": fq.quantize(model, calibration, mode=mode, example_inputs=example) for mode in MODES}


def cifar_rows(depth: int, data: Path) -> tuple[list[list[str]], bool]:
    """A row per way to run the network, and whether the bar is met."""
    model = cifar_resnet(depth, data)
    calibration = list(cifar_images("cifar10-calib-512", data)[0].split(64))
    images, labels = cifar_images("cifar10-test-2000", data)
    batches = list(images.split(250))
    wanted = run(model, batches)
    ways = {**fxquant_modes(model, calibration), "torch.ao x86": torch_ao_static(model, calibration)}
    top1 = {"float": accuracy(wanted, labels)}
    rows = [[f"ResNet-{depth}", "float", f"{top1['float']:.2f}", "", ""]]
    for way, quantized in ways.items():
        output = run(quantized, batches)
        top1[way] = accuracy(output, labels)
        loss = top1[way] - top1["float"]
        rows.append([f"ResNet-{depth}", way, f"{top1[way]:.2f}", f"{loss:+.2f}", f"{sqnr_db(wanted, output):.1f}"])
    return rows, top1["float"] - top1["fxquant static"] <= MAX_LOSS + 1e-9


def accuracy(output: Tensor, labels: Tensor) -> float:
    return 100.0 * float((output.argmax(1) == labels).double().mean())


def lite_results(model: nn.Module, seed: int, args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """(SQNR, top-1 agreement with float) of every way to run EfficientNet-Lite0, on the crops of one seed."""
    options = {"batches": args.batches, "batch_size": args.batch_size, "statistics": LITE, "seed": seed}
    calibration, evaluation = pictures("calibration", **options), pictures("evaluation", **options)
    wanted = run(model, evaluation)
    ways = {
        **fxquant_modes(model, calibration),
        "torch.ao x86": torch_ao_static(model, calibration),
        "ONNX Runtime percentile": onnxruntime_runner(onnxruntime_file(model, calibration, "Percentile")),
    }
    outputs = {way: run(quantized, evaluation) for way, quantized in ways.items()}
    return {way: (sqnr_db(wanted, out), accuracy(out, wanted.argmax(1))) for way, out in outputs.items()}


def cifar_table(console: Console, data: Path) -> None:
    if not data.is_dir():
        console.print(f"CIFAR-10 is left out: {data} does not exist. Give the directory of its files with --data DIR.")
        return
    table = Table(title="CIFAR-10, 2,000 test images", title_justify="left")
    for column in ("network", "run by", "top-1", "points", "SQNR dB"):
        table.add_column(column, justify="left" if column in ("network", "run by") else "right")
    results = [cifar_rows(depth, data) for depth in (20, 32)]
    for rows, _ in results:
        for row in rows:
            table.add_row(*row)
    console.print(table)
    met = all(ok for _, ok in results)
    console.print(f"bar: fxquant static within {MAX_LOSS} points of float: {'met' if met else 'MISSED'}")


def lite_table(console: Console, args: argparse.Namespace) -> None:
    model = efficientnet_lite0()
    results = [lite_results(model, seed, args) for seed in args.seeds]
    count = args.batches * args.batch_size
    title = f"EfficientNet-Lite0, {len(results)} draws of {count} crops of natural pictures"
    table = Table(title=title, title_justify="left")
    for column in ("run by", "SQNR dB, mean", "worst draw", "fxquant static is above by", "top-1 agreement %"):
        table.add_column(column, justify="left" if column == "run by" else "right")
    for way in results[0]:
        sqnr, agreement = zip(*(result[way] for result in results), strict=True)
        gains = [result["fxquant static"][0] - result[way][0] for result in results]
        gain = f"{min(gains):+.2f} to {max(gains):+.2f}" if way in PEERS else ""
        table.add_row(way, f"{mean(sqnr):.2f}", f"{min(sqnr):.2f}", gain, f"{mean(agreement):.1f}")
    console.print(table)
    met = all(result["fxquant static"][0] > result[peer][0] for result in results for peer in PEERS)
    console.print(f"bar: SQNR of fxquant static above both peers in every draw: {'met' if met else 'MISSED'}")


def speaker_table(console: Console, steps: int = 80) -> None:
    """Cosine to float of int8 alone and of the default, which lifts what causes the error."""
    torch.manual_seed(0)
    model = SpeakerTwin().eval()
    calibration, held_out = [power(8, steps, seed) for seed in range(4)], power(24, steps, 9)
    wanted = run(model, [held_out])
    for precision in ("int8", "auto"):
        made = fq.quantize(model, calibration, precision=precision)
        cosine = float(torch.nn.functional.cosine_similarity(wanted, run(made, [held_out])).mean())
        account = fq.explain(made)
        lifted = [row.path for row in account if "lifted" in row.reason]
        console.print(
            f"speaker twin, {precision}: cosine {cosine:.5f}, weights int8 {account.int8_share:.0%}, {lifted}"
        )
    console.print(f"bar: cosine of the default above 0.999: {'met' if cosine > 0.999 else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_argument(parser)
    parser.add_argument("--batches", type=int, default=4, help="of pictures, for calibration and for evaluation")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2, 3, 4), help="one draw of crops each")
    parser.add_argument("--only", choices=("cifar", "lite", "speaker"), help="run one part")
    args = parser.parse_args()

    torch.manual_seed(0)
    console = Console(width=110)
    if args.only in (None, "cifar"):
        cifar_table(console, args.data)
    if args.only in (None, "lite"):
        lite_table(console, args)
    if args.only in (None, "speaker"):
        speaker_table(console)


if __name__ == "__main__":
    main()
