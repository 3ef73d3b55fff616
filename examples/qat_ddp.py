"""Train in several processes: `torchrun --nproc-per-node 2 examples/qat_ddp.py`.

Each rank has its own share of the digits of scikit-learn. All ranks end with the same ranges and weights.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fxquant as fq


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    return float((model(images).argmax(1) == labels).float().mean())


def check_agreement(state: dict[str, Tensor]) -> None:
    """Every tensor is the same on all ranks, bit for bit."""
    states: list[dict[str, Tensor] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    for name, value in state.items():
        for other in states:
            assert other is not None
            if not torch.equal(value, other[name]):
                raise SystemExit(f"ranks disagree about {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learn", choices=("ste", "lsq", "tqt"), default="lsq")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train, test = digits()
    loader = DataLoader(train, batch_size=50, sampler=DistributedSampler(train, shuffle=False))

    mapping = {
        "ste": fq.get_default_qat_qconfig("x86"),
        "lsq": fq.QConfig(
            activation=fq.Spec(bits=4, signed=False, symmetric=False, learn="lsq"),
            weight=fq.Spec(bits=4, granularity="per_channel", learn="lsq"),
        ),
        "tqt": fq.QConfig(activation=fq.Spec(learn="tqt"), weight=fq.Spec(learn="tqt")),
    }[args.learn]
    prepared = fq.prepare_qat_fx(network().train(), {"": mapping}, (train.tensors[0][:2],))
    model = DistributedDataParallel(prepared)
    result = fq.train_qat(
        model, loader, epochs=args.epochs, lr=1e-2, evaluate=lambda m: accuracy(m.module, test), progress=False
    )
    # batch norm statistics are each rank's own, but for the broadcast at the start of a step
    state = {name: value for name, value in prepared.state_dict().items() if "running" not in name}
    check_agreement(state)
    converted = fq.convert_fx(prepared)
    if dist.get_rank() == 0:
        print(f"{args.learn}: fake-quantized {result.best:.3f}, int8 {accuracy(converted, test):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
