"""An algorithm of the user's own: its hooks are called in their order, and it goes along with the prepared model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.algorithms.weighted_op import weighted_ops
from fxquant.graph.context import Context
from fxquant.graph.region import Region
from fxquant.numerics.observers.watcher import Watcher
from fxquant.passes.candidates import choice_of
from fxquant.passes.watch import seen

MAPPING = fq.get_default_qconfig_mapping()
X = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))


class Largest(Watcher):
    """The greatest absolute value of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(channels))

    def forward(self, x: Tensor) -> None:
        self.most = torch.maximum(self.most, x.detach().abs().flatten(0, -2).amax(0))

    def merge(self, other: Largest) -> None:
        self.most = torch.maximum(self.most, other.most)

    def fresh(self) -> Largest:
        return Largest(len(self.most))


@dataclass(frozen=True)
class LargestOf:
    channels: int

    @property
    def label(self) -> str:
        return f"largest_{self.channels}"

    def make(self) -> Largest:
        return Largest(self.channels)


CALLS: list[str] = []


@dataclass(frozen=True)
class Scaled(fq.algorithms.Algorithm):
    """Multiplies the weights by factors, and asks for what AWQ or SmoothQuant ask for."""

    before: float = 1.0
    after: float = 1.0

    def rewrite(self, region: Region, context: Context) -> None:
        CALLS.append("rewrite")
        assert all(choice_of(node) is not None for node in region.graph.nodes if node.op == "call_module")
        self._scale(region, self.before)

    def watch(self, region: Region, context: Context) -> Iterator[fq.algorithms.Watched]:
        CALLS.append(f"watch {context.hardware.name}")
        for op in weighted_ops(region, context):
            yield fq.algorithms.Watched(op.tensor, LargestOf(op.channels))

    def adapt(self, region: Region, context: Context) -> None:
        CALLS.append("adapt" if self._seen(region, "input_1") is not None else "adapt without data")

    def apply(self, region: Region, context: Context) -> None:
        CALLS.append("apply")
        for op in weighted_ops(region, context):
            assert isinstance(seen(region, op.tensor, LargestOf(op.channels)), Largest)
        self._scale(region, self.after)

    def _seen(self, region: Region, tensor: str) -> Watcher | None:
        return seen(region, tensor, LargestOf(4))

    def _scale(self, region: Region, factor: float) -> None:
        for module in region.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(module.weight.detach() * factor)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)).eval()


def test_the_hooks_are_called_in_order() -> None:
    CALLS.clear()
    prepared = fq.prepare_fx(model(), MAPPING, (X,), algorithms=(Scaled(),), target="x86")
    assert CALLS == ["rewrite", "adapt without data", "watch x86"]
    fq.calibrate(prepared, [X])
    CALLS.clear()
    fq.convert_fx(prepared, engine="reference")
    assert CALLS == ["adapt", "apply"]
    assert torch.equal(prepared.get_submodule("statistics.input_1_largest_4").most, X.amax(0))


def test_both_rewrites_show_in_the_result_and_not_in_the_float_model() -> None:
    float_model = model()
    kept = copy.deepcopy(float_model.state_dict())
    plain = fq.quantize(float_model, [X], algorithms=(), engine="reference")
    before, after = (
        fq.quantize(float_model, [X], algorithms=(Scaled(**{when: 2.0}),), engine="reference")
        for when in ("before", "after")
    )
    for made in (before, after):
        assert torch.equal(made.get_submodule("0").weight_scale, 2 * plain.get_submodule("0").weight_scale)
    assert before.get_submodule("2").weight_scale is not None
    assert all(torch.equal(value, kept[name]) for name, value in float_model.state_dict().items())


def test_an_algorithm_goes_along_with_copies_pickles_and_freeze_and_is_applied_once() -> None:
    prepared = fq.prepare_fx(model(), MAPPING, (X,), algorithms=(Scaled(after=2.0), fq.algorithms.BiasCorrection()))
    fq.calibrate(prepared, [X])
    expected = fq.convert_fx(prepared, engine="reference")(X)
    others = copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared)), fq.freeze(prepared)
    for other in (*others, copy.deepcopy(others[2])):
        assert torch.equal(fq.convert_fx(other, engine="reference")(X), expected)


def test_what_is_no_algorithm_is_refused() -> None:
    wrong = {
        r"Give a tuple": fq.algorithms.BiasCorrection(),
        r"the class BiasCorrection.*BiasCorrection\(\)": (fq.algorithms.BiasCorrection,),
        r"'smooth', which is no fxquant.algorithms.Algorithm": ("smooth",),
    }
    for message, given in wrong.items():
        with pytest.raises(fq.ConfigError, match=message):
            fq.prepare_fx(model(), MAPPING, (X,), algorithms=given)
