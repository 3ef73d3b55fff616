"""Calibrate and train in several processes: `torchrun --nproc-per-node 2 examples/qat_ddp.py`.

Each rank has its own share of the digits of scikit-learn. Calibration merges what all ranks saw, training starts from
it, and all ranks end with the same ranges and weights.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from _digits import accuracy, digits, network
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import fxquant as fq


def check_agreement(state: dict[str, Tensor]) -> None:
    """Every tensor is the same on all ranks, bit for bit."""
    states: list[dict[str, Tensor] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    for name, value in state.items():
        for other in states:
            assert other is not None
            if not torch.equal(value, other[name]):
                raise SystemExit(f"ranks disagree about {name}")


def train_float(model: nn.Module, loader: DataLoader, epochs: int) -> None:
    """Each rank on its share; all end with the weights and statistics of rank 0."""
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(shared.parameters(), 1e-2)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(shared(images), labels).backward()
            optimizer.step()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learn", choices=("ste", "lsq", "tqt"), default="lsq")
    args = parser.parse_args()
    if not dist.is_torchelastic_launched():
        parser.error("start it by torchrun: torchrun --nproc-per-node 2 examples/qat_ddp.py")

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train, test = digits()
    loader = DataLoader(train, batch_size=50, sampler=DistributedSampler(train, shuffle=False))

    example = (train.tensors[0][:2],)
    model = network()
    train_float(model, loader, args.epochs)
    calibrated = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), example)
    fq.calibrate(calibrated, [images for images, _ in loader])
    check_agreement(calibrated.state_dict())

    qconfig = {
        "ste": fq.get_default_qat_qconfig("x86"),
        "lsq": fq.QConfig(
            activation=fq.Spec(bits=4, signed=False, symmetric=False, learn="lsq"),
            weight=fq.Spec(bits=4, granularity="per_channel", learn="lsq"),
        ),
        "tqt": fq.QConfig(activation=fq.Spec(learn="tqt"), weight=fq.Spec(learn="tqt")),
    }[args.learn]
    prepared = fq.prepare_qat_fx(model.train(), {"": qconfig}, example)
    prepared.load_state_dict(calibrated.state_dict())
    result = fq.train_qat(
        DistributedDataParallel(prepared),
        loader,
        epochs=args.epochs,
        lr=1e-3,
        evaluate=lambda m: accuracy(m.module, test),
        progress=False,
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
