"""Tune on Ray: `python examples/tune_on_ray.py`, or with `--address auto` on a cluster.

Calibration runs once, here. Each trial is decided from its statistics and evaluated by a worker; `evaluate` has to be
picklable, so it is a function of a module. The result is that of one process, whichever worker is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from _digits import ResNet, accuracy, digits, trained
from torch import nn

import fxquant as fq

W4A8 = fq.QConfig(activation=fq.Spec(signed=False, symmetric=False), weight=fq.Spec(bits=4, granularity="per_channel"))


class Top1:
    """The share of held-out digits that a model sees right, sample by sample. Workers get the tensors along with it."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> torch.Tensor:
        return (model(self.images).argmax(1) == self.labels).float()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, in this process")
    parser.add_argument("--address", help='of a cluster ("auto" for the one of this machine); a local one without it')
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(arguments)

    torch.manual_seed(0)
    train, test = digits()
    model = trained(ResNet(8), train, epochs=2 if args.quick else 6)
    result = fq.tune(
        model,
        list(train.tensors[0][:280].split(70)),
        Top1(*test.tensors),
        qconfig_mapping={"": W4A8},  # 4-bit weights cost something, so that there is something to tune
        tolerance=0.002,
        criterion="absolute",
        max_trials=3 if args.quick else 12,
        executor=None if args.quick else fq.Ray(workers=args.workers, address=args.address),
    )
    print(result)
    found = {"float": accuracy(model, test), "tuned": accuracy(result.model, test)}
    found.update(passed=float(result.passed), trials=float(len(result.trials)))
    print(", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
