"""Accuracy of int8 networks with trained weights, beside peers in the same run.

cifar      ResNets on CIFAR-10: top-1 on 2,000 test images after calibration on 512; the bars: static within 0.3 points
           of float, and its output SQNR 2 dB above the best peer's
few_bits   ResNet-20 with weights of 4 bits; the bars, in points below float: W4A8 1.0 (balanced) and 0.4 (best),
           W4A4 with 8 bits for the first and last layer 3 (best)
lite       EfficientNet-Lite0 on natural pictures: output SQNR and top-1 agreement with float; the bar: SQNR 3 dB above
           every peer
speaker    an LSTM that int8 alone makes nothing of; the bar: cosine above 0.999 by default, weights int8
sentences  all-MiniLM-L6-v2: cosine of the embeddings; the bars: above 0.997, and above NNCF's with its transformer hint
detection  YOLOX-Nano on COCO; the bars: within 0.7 mAP of float, and above NNCF
cost       what `effort="balanced"` takes, in float passes over the calibration data; the bar: 3 and a conversion

Peers run with exact sums: on a CPU without VNNI, in float on their grids.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fxquant as fq
from _models import LITE, add_data_argument, cifar_images, cifar_resnet, efficientnet_lite0, pictures
from _peers import (
    Forward,
    nncf_sentences,
    nncf_static,
    onnxruntime_file,
    onnxruntime_runner,
    openvino_runner,
    run,
    torch_ao_static,
)
from _sentences import SentenceEncoder, embeddings, sentence_batches
from _speaker import SpeakerTwin, power
from fxquant.numerics.affine import sqnr_db

MAX_LOSS = 0.3
MODES = ("static", "dynamic", "weight_only")
PEERS = ("torch.ao x86", "ONNX Runtime percentile", "NNCF")
FEW_BITS = (("W4A8", 8, "balanced", 1.0), ("W4A8", 8, "best", 0.4), ("W4A4", 4, "best", 3.0))


def fxquant_modes(model: nn.Module, calibration: list[Tensor], target: str | None) -> dict[str, Forward]:
    example = (calibration[0],)
    return {
        f"fxquant {mode}": fq.quantize(model, calibration, mode=mode, example_inputs=example, target=target)
        for mode in MODES
    }


def peers(model: nn.Module, calibration: list[Tensor]) -> dict[str, Forward]:
    return {
        "torch.ao x86": torch_ao_static(model, calibration),
        "ONNX Runtime percentile": onnxruntime_runner(onnxruntime_file(model, calibration, "Percentile"), exact=True),
        "NNCF": openvino_runner(nncf_static(model, calibration), 0, exact=True),
    }


def accuracy(output: Tensor, labels: Tensor) -> float:
    return 100.0 * float((output.argmax(1) == labels).double().mean())


def say(console: Console, bar: str, met: bool) -> None:
    console.print(f"bar: {bar}: {'met' if met else 'MISSED'}")


def cifar_rows(depth: int, args: argparse.Namespace) -> tuple[list[list[str]], float, float]:
    """A row per way to run the network, the points that static loses, and the dB that it is above the best peer."""
    model = cifar_resnet(depth, args.data)
    calibration = list(cifar_images("cifar10-calib-512", args.data)[0].split(64))
    images, labels = cifar_images("cifar10-test-2000", args.data)
    batches = list(images.split(64)[:-1])  # NNCF's model takes batches of one size
    labels = labels[: sum(map(len, batches))]
    wanted = run(model, batches)
    ways = {**fxquant_modes(model, calibration, args.target), **peers(model, calibration)}
    top1, sqnr = {"float": accuracy(wanted, labels)}, {}
    rows = [[f"ResNet-{depth}", "float", f"{top1['float']:.2f}", "", ""]]
    for way, quantized in ways.items():
        output = run(quantized, batches)
        top1[way], sqnr[way] = accuracy(output, labels), sqnr_db(wanted, output)
        loss = top1[way] - top1["float"]
        rows.append([f"ResNet-{depth}", way, f"{top1[way]:.2f}", f"{loss:+.2f}", f"{sqnr[way]:.1f}"])
    above = sqnr["fxquant static"] - max(sqnr[peer] for peer in PEERS)
    return rows, top1["float"] - top1["fxquant static"], above


def cifar_table(console: Console, args: argparse.Namespace) -> None:
    table = Table(title="CIFAR-10, test images", title_justify="left")
    for column in ("network", "run by", "top-1", "points", "SQNR dB"):
        table.add_column(column, justify="left" if column in ("network", "run by") else "right")
    results = [cifar_rows(depth, args) for depth in (20, 32)]
    for rows, _, _ in results:
        for row in rows:
            table.add_row(*row)
    console.print(table)
    say(console, f"static within {MAX_LOSS} points of float", all(lost <= MAX_LOSS + 1e-9 for _, lost, _ in results))
    gains = [above for _, _, above in results]
    say(console, f"SQNR 2 dB above the best peer ({', '.join(f'{g:+.1f}' for g in gains)})", min(gains) >= 2)


def few_bits_table(console: Console, args: argparse.Namespace) -> None:
    model = cifar_resnet(20, args.data)
    calibration = list(cifar_images("cifar10-calib-512", args.data)[0].split(64))
    images, labels = cifar_images("cifar10-test-2000", args.data)
    batches = list(images.split(250))
    top1 = accuracy(run(model, batches), labels)
    console.print(f"ResNet-20, float: {top1:.2f}")
    weight, activation = fq.Spec(bits=4, granularity="per_channel"), fq.Spec(signed=False, symmetric=False)
    for name, bits, effort, most in FEW_BITS:
        rules = fq.QConfigMapping().set_global(fq.QConfig(activation=activation.with_(bits=bits), weight=weight))
        if bits < 8:
            ends = fq.QConfig(activation=activation, weight=weight.with_(bits=8), input=activation)
            rules = rules.set_module_name("conv1", ends).set_module_name("linear", ends)
        start = time.perf_counter()
        made = fq.quantize(model, calibration, qconfig_mapping=rules, effort=effort, engine="reference")
        seconds = time.perf_counter() - start
        found = accuracy(run(made, batches), labels)
        say(console, f"{name}, {effort}: {found:.2f} in {seconds:.0f} s, within {most} points", top1 - found <= most)


def lite_results(model: nn.Module, seed: int, args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """(SQNR, top-1 agreement with float) of every way to run EfficientNet-Lite0, on the crops of one seed."""
    options = {"batches": args.batches, "batch_size": args.batch_size, "statistics": LITE, "seed": seed}
    calibration, evaluation = pictures("calibration", **options), pictures("evaluation", **options)
    wanted = run(model, evaluation)
    ways = {**fxquant_modes(model, calibration, args.target), **peers(model, calibration)}
    outputs = {way: run(quantized, evaluation) for way, quantized in ways.items()}
    return {way: (sqnr_db(wanted, out), accuracy(out, wanted.argmax(1))) for way, out in outputs.items()}


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
    met = all(result["fxquant static"][0] >= result[peer][0] + 3 for result in results for peer in PEERS)
    say(console, "SQNR of fxquant static 3 dB above every peer in every draw", met)


def speaker_table(console: Console, args: argparse.Namespace, steps: int = 80) -> None:
    """Cosine to float of int8 alone and of the default, which lifts what causes the error."""
    torch.manual_seed(0)
    model = SpeakerTwin().eval()
    calibration, held_out = [power(8, steps, seed) for seed in range(4)], power(24, steps, 9)
    wanted = run(model, [held_out])
    for precision in ("int8", "auto"):
        made = fq.quantize(model, calibration, precision=precision, target=args.target)
        cosine = float(torch.nn.functional.cosine_similarity(wanted, run(made, [held_out])).mean())
        account = fq.explain(made)
        lifted = [row.path for row in account if "lifted" in row.reason]
        console.print(
            f"speaker twin, {precision}: cosine {cosine:.5f}, weights int8 {account.int8_share:.0%}, {lifted}"
        )
    say(console, "cosine of the default above 0.999", cosine > 0.999)


def sentences_table(console: Console, args: argparse.Namespace) -> None:
    model = SentenceEncoder().eval()
    calibration, held_out = sentence_batches("calibration", 64), sentence_batches("evaluation", 64)
    wanted = embeddings(model, held_out)
    ways = {
        "fxquant": fq.quantize(model, calibration, target=args.target),
        "NNCF": openvino_runner(nncf_sentences(model, calibration), 0, exact=True),
    }
    found = {
        way: torch.nn.functional.cosine_similarity(wanted, embeddings(made, held_out)) for way, made in ways.items()
    }
    for way, cosines in found.items():
        console.print(f"MiniLM, {way}: cosine {cosines.mean():.5f}, the least {cosines.min():.5f}")
    best = float(found["fxquant"].mean())
    say(console, "cosine above 0.997 and above NNCF's", best > 0.997 and best > float(found["NNCF"].mean()))


def detection_table(console: Console, args: argparse.Namespace) -> None:
    from _detection import Yolox

    yolox = Yolox(args.data / "coco")
    ways: dict[str, Callable[[], Forward]] = {
        "float": lambda: yolox.model,
        "fxquant": lambda: fq.quantize(yolox.model, yolox.calibration, target=args.target),
        "NNCF": lambda: openvino_runner(nncf_static(yolox.model, yolox.calibration), 0, exact=True),
    }
    found = {}
    for way, make in ways.items():
        row = yolox.row(way, make())
        found[way] = row.value
        console.print(f"YOLOX-Nano, {way}: mAP {row.value:.2f}, {row.note}")
    close = found["float"] - found["fxquant"] <= 0.7
    say(console, "within 0.7 mAP of float, and above NNCF", close and found["fxquant"] > found["NNCF"])


def cost_table(console: Console, args: argparse.Namespace) -> None:
    calibration = list(cifar_images("cifar10-calib-512", args.data)[0].split(64))
    models: Sequence[tuple[str, nn.Module, list[Tensor]]] = [
        ("ResNet-20", cifar_resnet(20, args.data), calibration),
        (
            "EfficientNet-Lite0",
            efficientnet_lite0(),
            pictures("calibration", batches=4, batch_size=16, statistics=LITE),
        ),
    ]
    for name, model, data in models:
        run(model, data[:1])
        start = time.perf_counter()
        run(model, data)
        whole = time.perf_counter() - start
        taken = {}
        for count in (1, len(data)):  # what does not depend on the data is the conversion
            start = time.perf_counter()
            fq.quantize(model, data[:count], target=args.target, engine="reference")
            taken[count] = time.perf_counter() - start
        passes = (taken[len(data)] - taken[1]) / whole * len(data) / (len(data) - 1)
        say(console, f"{name}: {passes:.1f} float passes, {taken[1]:.1f} s besides, at most 3", passes <= 3)


PARTS: dict[str, Callable[[Console, argparse.Namespace], None]] = {
    "cifar": cifar_table,
    "few_bits": few_bits_table,
    "lite": lite_table,
    "speaker": speaker_table,
    "sentences": sentences_table,
    "detection": detection_table,
    "cost": cost_table,
}
NEEDS_DATA = ("cifar", "few_bits", "detection", "cost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_argument(parser)
    parser.add_argument("--batches", type=int, default=4, help="of pictures, for calibration and for evaluation")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2, 3, 4), help="one draw of crops each")
    parser.add_argument("--target", help="grids of another CPU than this one, such as x86-vnni")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), help="run some parts")
    args = parser.parse_args()

    torch.manual_seed(0)
    console = Console(width=110)
    for name in args.only or PARTS:
        if name in NEEDS_DATA and not Path(args.data).is_dir():
            console.print(f"{name} is left out: {args.data} does not exist. Give its directory with --data DIR.")
            continue
        PARTS[name](console, args)


if __name__ == "__main__":
    main()
