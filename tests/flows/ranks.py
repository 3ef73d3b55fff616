"""Run by test_distributed.py under torchrun, on two ranks: what has to agree between them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[1]))

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.table import Observer
from zoo import ZOO, images


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 3, 16, 16, generator=generator) * (i + 1) for i in range(6)]


def prepare(observer: str) -> nn.Module:
    activation = fq.Spec(signed=False, symmetric=False, observer=observer)
    qconfig = fq.QConfig(activation=activation, weight=fq.Spec(granularity="per_channel", observer="minmax"))
    return fq.prepare_fx(ZOO["resnet"].build(), {"": qconfig}, ZOO["resnet"].inputs())


def qparams(model: nn.Module) -> list[tuple[float, int]]:
    found = [module.compute_qparams() for module in decide(model).modules() if isinstance(module, FakeQuant)]
    return [(float(scale), int(zero)) for scale, zero in found]


def everywhere(value: object) -> list[object]:
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def check_calibration(expected: dict[str, list[tuple[float, int]]]) -> None:
    for observer, wanted in expected.items():
        model = prepare(observer)
        fq.calibrate(model, batches()[dist.get_rank() :: dist.get_world_size()])
        assert everywhere(qparams(model)) == [wanted] * dist.get_world_size(), observer


def check_calibration_in_parts(expected: list[tuple[float, int]]) -> None:
    """What the ranks share from a first calibration counts once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = prepare("entropy")
    fq.calibrate(model, batches()[rank:2:size])
    fq.calibrate(model, batches()[2 + rank :: size])
    assert everywhere(qparams(model)) == [expected] * size
    assert {int(module.batches) for module in model.modules() if isinstance(module, Observer)} == {6}


def check_start_and_observers() -> None:
    activations = {
        "lsq": {"learn": "lsq"},
        "tqt": {"learn": "tqt"},
        "ste": {"learn": "ste", "observer": "moving_average"},
    }
    for name, fields in activations.items():
        spec = fq.Spec(**fields)
        weight = fq.Spec(learn="tqt") if name == "tqt" else fq.Spec(granularity="per_channel", learn="ste")
        qconfig = fq.QConfig(activation=spec, weight=weight)
        model = fq.prepare_qat_fx(ZOO["functional_mlp"].build().train(), {"": qconfig}, ZOO["functional_mlp"].inputs())
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), 1e-2)
        for step in range(3):
            torch.manual_seed(10 * step + dist.get_rank())  # the ranks see different data
            optimizer.zero_grad()
            parallel(torch.randn(4, 16) * (1 + dist.get_rank())).square().mean().backward()
            optimizer.step()
        states = everywhere(dict(model.state_dict()))
        for key, value in states[0].items():
            assert all(torch.equal(value, other[key]) for other in states), (name, key)


class Remembers(nn.Module):
    """Counts its calls in a place that all instances share."""

    calls: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) < 1e9:
            self.calls.append(len(x))
        return self.fc(x)


def check_sharded_model_forgets() -> None:
    float_model, x = Remembers().eval(), torch.randn(2, 4)
    model = fq.prepare_fx(float_model, fq.get_default_qconfig_mapping(), (x,))
    fully_shard(model)
    for _ in range(2):
        fq.calibrate(model, [x])
        assert Remembers.calls == []
    sharded = fully_shard(Remembers().eval())
    sharded(x)
    Remembers.calls.clear()
    fq.check(sharded, fq.quantize(float_model, [x], effort="fast"), [x])
    assert Remembers.calls == []


def check_sharded(expected: list[tuple[float, int]]) -> None:
    model = prepare("histogram")
    plain = prepare("histogram")
    fully_shard(model)
    fq.calibrate(model, batches()[dist.get_rank() :: dist.get_world_size()])
    assert everywhere(qparams(model)) == [expected] * dist.get_world_size()
    x = images(2)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))


class Branched(nn.Module):
    """Code of which no graph takes all."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        if x.sum() > 1e9:
            x = x * 2
        return self.head(x.mean((2, 3)))


def check_sharded_parts_train() -> None:
    """Parts that say to be a torch module, or the user's, go on rounding."""
    x = batches()[0]
    for parts in (["block", "head"], ["block.0", "head"], ["head"]):
        torch.manual_seed(0)
        model = fq.prepare_qat_fx(Branched().train(), fq.get_default_qat_qconfig_mapping(), (x,))
        model(x)
        expected = model.eval()(x)
        for part in [*parts, ""]:
            fully_shard(model.get_submodule(part))
        assert torch.equal(model(x), expected), parts
        model.train()(x).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), parts


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    expected = {}
    for observer in ("histogram", "minmax", "entropy"):  # in one process, with all the data
        model = prepare(observer)
        fq.calibrate(model, batches())
        expected[observer] = qparams(model)
    dist.init_process_group("gloo")
    check_calibration(expected)
    check_calibration_in_parts(expected["entropy"])
    check_start_and_observers()
    check_sharded(expected["histogram"])
    check_sharded_model_forgets()
    check_sharded_parts_train()
    if dist.get_rank() == 0:
        print("ranks agree")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
