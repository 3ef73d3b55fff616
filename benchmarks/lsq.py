"""Is a learned step worth choosing? A plain loop, with nothing tuned for it: Adam at 1e-3 on everything.

digits       scikit-learn's 8x8 digits, 4 epochs from random weights, W4A4, a small network with a depthwise and a
             transposed convolution; top-1 on 397 held-out digits, over many seeds, with the standard error of how much
             LSQ is above straight-through: six seeds say nothing about a tenth
ResNet-20    the trained CIFAR-10 network, W4A4, 2 epochs over 5,000 images with labels; top-1 on 2,000 test images
The bar: LSQ ends at or above straight-through in both.
"""

from __future__ import annotations

import argparse
import copy
import math
from statistics import mean, stdev

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from _models import add_data_argument, cifar_images, cifar_resnet
from _peers import run

METHODS = ("ste", "lsq", "lsq+")


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 16, 2, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def w4a4(learn: str) -> fq.QConfig:
    weight = "lsq" if learn == "lsq+" else learn  # an offset is for activations
    return fq.QConfig(
        activation=fq.Spec(bits=4, signed=False, symmetric=False, learn=learn),
        weight=fq.Spec(bits=4, granularity="per_channel", learn=weight),
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(images, labels) to train on and (images, labels) to test with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return images[train], labels[train], images[test], labels[test]


def plain_loop(model: nn.Module, images: Tensor, labels: Tensor, *, epochs: int, batch: int, seed: int) -> None:
    """What a user writes first."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
    model.eval()


def converted_top1(prepared: nn.Module, images: Tensor, labels: Tensor) -> float:
    output = run(fq.convert_fx(prepared, engine="reference"), list(images.split(250)))
    return 100.0 * float((output.argmax(1) == labels).double().mean())


def digits_top1(learn: str | None, seed: int, *, batch: int = 32) -> float:
    """Of the converted network after 4 epochs; of the float one for None."""
    images, labels, test_images, test_labels = digits()
    torch.manual_seed(seed)
    model = small_net().train()
    if learn is not None:
        model = fq.prepare_qat_fx(model, {"": w4a4(learn)}, (images[:2],))
    plain_loop(model, images, labels, epochs=4, batch=batch, seed=seed)
    if learn is not None:
        return converted_top1(model, test_images, test_labels)
    return 100.0 * float((run(model, [test_images]).argmax(1) == test_labels).double().mean())


def cifar_top1(learn: str, args: argparse.Namespace) -> float:
    images, labels = (part[: args.images] for part in cifar_images("cifar10-train-5000", args.data))
    torch.manual_seed(0)
    model = copy.deepcopy(cifar_resnet(20, args.data)).train()
    prepared = fq.prepare_qat_fx(model, {"": w4a4(learn)}, (images[:2],))
    plain_loop(prepared, images, labels, epochs=args.epochs, batch=50, seed=0)
    return converted_top1(prepared, *cifar_images("cifar10-test-2000", args.data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_argument(parser)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(30), help="one differs from the next by 0.6")
    parser.add_argument("--images", type=int, default=5000, help="of CIFAR-10 to train on")
    parser.add_argument("--epochs", type=int, default=2, help="over CIFAR-10")
    parser.add_argument("--only", choices=("digits", "cifar"), help="run one part")
    args = parser.parse_args()

    console = Console(width=110)
    table = Table(title="W4A4 in a plain loop, top-1 of the converted network", title_justify="left")
    for column in ("data", "float", *METHODS):
        table.add_column(column, justify="left" if column == "data" else "right")
    met = True
    if args.only != "cifar":
        found = {learn: [digits_top1(learn, seed) for seed in args.seeds] for learn in (None, *METHODS)}
        table.add_row("digits, mean of seeds", *(f"{mean(found[learn]):.2f}" for learn in (None, *METHODS)))
        table.add_row("digits, worst seed", *(f"{min(found[learn]):.1f}" for learn in (None, *METHODS)))
        met = mean(found["lsq"]) >= mean(found["ste"])
        more = [one - other for one, other in zip(found["lsq"], found["ste"], strict=True)]
        error = stdev(more) / len(more) ** 0.5 if len(more) > 1 else math.nan
        table.caption = f"digits: LSQ is {mean(more):+.2f} above straight-through, standard error {error:.2f}"
    if args.only != "digits" and not args.data.is_dir():
        console.print(f"CIFAR-10 is left out: {args.data} does not exist. Give the directory with --data DIR.")
    elif args.only != "digits":
        top1 = {learn: cifar_top1(learn, args) for learn in METHODS}
        table.add_row("CIFAR-10 ResNet-20", "92.0", *(f"{top1[learn]:.2f}" for learn in METHODS))
        met = met and top1["lsq"] >= top1["ste"]
    console.print(table)
    console.print(f"bar: LSQ at or above straight-through: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
