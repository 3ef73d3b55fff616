"""Automatic precision: what causes an error is lifted and nothing else, from one calibration, the same each time."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.table import REFERENCE
from fxquant.errors import ConfigError
from fxquant.graph.amendments import Amendments, Regridded
from fxquant.precision.attribute import NOW
from fxquant.precision.auto import _Search
from fxquant.precision.check import Check
from fxquant.precision.outputs import OutputRow
from fxquant.precision.sources import Reader, Source
from fxquant.precision.steps import CALLED, COMPILED, more_precision
from precision_models import Branches, Collapsing, DeadInputs, Exponential, collapsing, uneven
from zoo import ZOO


def quiet(model: nn.Module, data: list[Tensor], **options: object) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fq.quantize(model, data, **options)  # type: ignore[arg-type]


def reasons(model: nn.Module) -> dict[str, str]:
    return {row.path: row.reason for row in fq.explain(model) if "lifted" in row.reason or "range by" in row.reason}


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_the_cause_is_lifted_and_told(engine: str) -> None:
    if engine == "native":
        pytest.importorskip("llvmlite")
    model, data = collapsing()
    with pytest.warns(UserWarning, match=r"Lifted first \(weight_only\)") as told:
        made = fq.quantize(model, data, engine=engine)
    assert len(told) == 1 and told[0].filename == __file__
    assert fq.check(model, made, data).cosine > 0.999
    assert {row.kind: row.status for row in fq.explain(made) if row.path != "head"} == {
        "linear": "weight_only",
        "tanh": "float",
    }
    assert [row.status for row in fq.explain(made) if row.path == "head"] == ["int8"]
    assert "dB ->" in reasons(made)["first"] and "its input" in reasons(made)["first"]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_an_input_that_no_range_fits_is_read_in_float(mode: str) -> None:
    torch.manual_seed(0)
    model, data = Exponential().eval(), [torch.randn(8, 16) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"Lifted first \(weight_only\)"):
        made = fq.quantize(model, data, mode=mode, engine="onednn")  # type: ignore[arg-type]
    assert fq.check(model, made, data).sqnr > 27


def test_weights_that_were_chosen_are_lifted_where_nothing_else_explains_it() -> None:
    torch.manual_seed(0)
    model, data = DeadInputs().eval(), [torch.randn(8, 16) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"Lifted head \(float\)"):
        made = fq.quantize(model, data, mode="weight_only", engine="onednn")
    assert fq.check(model, made, data).sqnr > 27


def test_an_input_and_its_weight_that_both_cause_it_are_lifted_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)).eval()
    columns = 10 ** torch.linspace(-3, 6, 10)  # of a table whose columns have units of their own
    with torch.no_grad():
        model[0].weight /= columns
    data = [torch.randn(64, 10) * columns for _ in range(4)]
    with pytest.warns(UserWarning, match=r"Lifted 0 \(float\)"):
        made = fq.quantize(model, data, engine="reference")
    assert fq.check(model, made, [torch.randn(64, 10) * columns]).sqnr > 27


def test_what_would_help_is_told_where_it_takes_too_long() -> None:
    torch.manual_seed(0)
    model, data = Exponential().eval(), [torch.randn(8, 16) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"Lifting .* \(.*\) is predicted to gain .* more time than int8"):
        made = fq.quantize(model, data, engine="onednn", budget=0.36)
    assert fq.check(model, made, data, least=10.0).passed
    assert all("range by" in reason for reason in reasons(made).values())  # which costs no time


def test_the_same_again_bit_by_bit() -> None:
    model, data = collapsing()
    one, other = (fq.quantize(model, data, engine="reference").state_dict() for _ in range(2))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_int8_stays_int8_when_asked_for() -> None:
    model, data = collapsing()
    with pytest.warns(UserWarning, match="eat their signal"):
        made = fq.quantize(model, data, precision="int8", engine="reference")
    assert {row.status for row in fq.explain(made)} == {"int8"}


def test_rules_of_ones_own_stay_and_what_falls_short_is_told() -> None:
    model, data = collapsing()
    with pytest.warns(UserWarning, match=r"first \(weight_only\) would help most. The rules that were given stay"):
        made = fq.quantize(model, data, qconfig_mapping=fq.get_default_qconfig_mapping(), engine="reference")
    assert {row.status for row in fq.explain(made)} == {"int8"}


@pytest.mark.broad
@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vision_transformer", "unet"])
def test_models_that_do_well_stay_as_they_are(name: str) -> None:
    entry = ZOO[name]
    model = entry.build().eval()
    torch.manual_seed(0)
    data = [entry.inputs() for _ in range(2)]
    auto, plain = (quiet(model, data, precision=p, engine="reference") for p in ("auto", "int8"))
    assert [row.status for row in fq.explain(auto)] == [row.status for row in fq.explain(plain)]
    assert not any("lifted" in reason for reason in reasons(auto).values())


def test_a_budget_buys_precision_and_bounds_it() -> None:
    torch.manual_seed(0)
    body = [nn.Linear(32, 32) for _ in range(6)]
    model = nn.Sequential(*(part for linear in body for part in (linear, nn.Tanh()))).eval()
    spec = fq.Spec(bits=3, signed=False, symmetric=False)
    target = fq.Target(
        name="coarse", kinds=frozenset(("linear", "tanh")), activation=spec, weight=fq.Spec(granularity="per_channel")
    )
    data = [torch.randn(32, 32) for _ in range(2)]
    found = {}
    for budget in (0.36, 0.7, 1.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = fq.quantize(model, data, target=target, engine="reference", budget=budget, effort="fast")
        rows = [row for row in fq.explain(made) if row.kind == "linear"]
        found[budget] = sum(row.status == "weight_only" for row in rows), fq.check(model, made, data).sqnr
    assert found[0.36][0] == 0 < found[0.7][0] < found[1.0][0]
    assert found[0.36][1] < found[0.7][1] < found[1.0][1]


def test_regions_inside_of_code_that_runs_as_written() -> None:
    class Wild(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = collapsing()[0]
            self.rest = Branches()
            self.out = nn.Linear(4, 8)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.inner(x)
            return {"wild": self.rest(self.out(y)) if float(y.sum()) < 1e9 else y}

    model, data = Wild().eval(), collapsing()[1]
    with pytest.warns(UserWarning, match=r"Lifted inner.first \(weight_only\)"):
        made = fq.quantize(model, data, engine="onednn")
    assert fq.check(model, made, data).sqnr > 25


def test_without_gradients_a_tensor_counts_by_its_own_noise() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = collapsing()[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).detach()

    model, data = Detached().eval(), collapsing()[1]
    with pytest.warns(UserWarning, match="Lifted"):
        made = fq.quantize(model, data, engine="reference")
    assert fq.check(model, made, data).passed


def test_it_is_saved_with_its_decisions(tmp_path: object) -> None:
    model, data = collapsing()
    made = fq.quantize(model, data, engine="reference")
    fq.save(made, f"{tmp_path}/model.fq")
    back = fq.load(f"{tmp_path}/model.fq", engine="reference")
    assert torch.equal(back(data[0]), made(data[0]))
    assert reasons(back) == reasons(made)


def test_the_float_model_and_the_data_stay_as_they_are() -> None:
    model, data = collapsing()
    before, kept = copy.deepcopy(model.state_dict()), [x.clone() for x in data]
    fq.quantize(model, iter(data), engine="reference")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(torch.equal(one, other) for one, other in zip(kept, data, strict=True))
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_mistakes_are_named() -> None:
    model, data = collapsing()
    with pytest.raises(ConfigError, match="precision='int4'"):
        fq.quantize(model, data, precision="int4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="budget=2"):
        fq.quantize(model, data, budget=2)
    with pytest.raises(ConfigError, match="effort='worst'"):
        fq.quantize(model, data, effort="worst")  # type: ignore[arg-type]


def test_what_lies_between_good_and_lost_is_told() -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), [torch.randn(8, 16)]
    few_bits = fq.QConfig(activation=fq.Spec(bits=4), weight=fq.Spec(bits=3))
    rules = fq.QConfigMapping().set_global(few_bits)
    with pytest.warns(UserWarning, match="dB from float"):
        made = fq.quantize(model, data, qconfig_mapping=rules, engine="reference", effort="fast")
    found = fq.check(model, made, data)
    assert not found.passed and 5 < found.sqnr < 20  # one threshold: what is told does not pass


def test_what_leaves_machine_code_has_its_price() -> None:
    reader = Reader(
        place=("", "conv"),
        path="conv",
        kind="conv2d",
        status="int8",
        weighted=True,
        dynamic=False,
        work=1e6,
        values=1e5,
    )
    source = Source(
        name="x", place=("", "x"), spec=fq.Spec(), is_weight=False, readers=(reader,), noise={NOW: 1.0}, calls=1.0
    )
    slower = [
        more_precision([source], goal=0.1, slower=9e9, dynamic=False, prices=prices).slower
        for prices in (CALLED, COMPILED)
    ]
    assert slower[1] > 10 * slower[0] > 0


def test_ranges_that_end_a_collapse_are_not_the_end() -> None:
    """After a collapse, what a better range leaves is lifted, too, until the model is good."""
    torch.manual_seed(0)
    model, data = Exponential().eval(), [torch.randn(8, 16) for _ in range(4)]
    found = Check(outputs=(OutputRow(name="y", sqnr=24.0, cosine=1.0, max_error=0.0),), least=10.0, batches=1)
    search = _Search(model, data, REFERENCE, lambda made, on: made, lambda made: found, None)
    assert [limit.gain for limit in search._limits([], found)] == [6.0, 10.0]
    search._start, search.amendments = 7.0, Amendments(grids={("", "x"): Regridded((), "")})
    assert [limit.gain for limit in search._limits([], found)] == [1.0]


def test_one_tensor_that_makes_nearly_all_is_lifted_where_the_model_does_well() -> None:
    model, data = uneven()
    plain = fq.check(model, fq.quantize(model, data, engine="reference", precision="int8"), data)
    assert plain.passed and plain.sqnr < 27
    with pytest.warns(UserWarning, match=r"Lifted first \(weight_only\)") as told:
        made = fq.quantize(model, data, engine="reference")
    assert len(told) == 1 and told[0].filename == __file__
    assert [row.status for row in fq.explain(made)].count("weight_only") == 1
    assert fq.check(model, made, data).sqnr > plain.sqnr + 6
    assert not reasons(fq.quantize(model, data, engine="reference", effort="fast"))


def test_a_budget_bounds_what_is_lifted_where_the_model_does_well() -> None:
    model, data = uneven()
    assert not reasons(quiet(model, data, engine="reference", budget=0.3))


def test_from_nearly_to_good_a_third_of_the_time_may_go() -> None:
    """Once a range has helped a model that failed, what is measured to make it good is lifted, and nothing less."""
    torch.manual_seed(0)
    model, data = Exponential().eval(), [torch.randn(8, 16) for _ in range(4)]
    found = Check(outputs=(OutputRow(name="y", sqnr=21.0, cosine=1.0, max_error=0.0),), least=10.0, batches=1)
    search = _Search(model, data, REFERENCE, lambda made, on: made, lambda made: found, None)
    search._start, search.amendments = 14.0, Amendments(grids={("", "x"): Regridded((), "")})
    *_, last = search._limits([], found)
    assert (last.slower, last.gain, last.measured) == (0.3, 3.0, 6.0)


def test_a_dear_first_step_leaves_room_for_what_costs_next_to_nothing() -> None:
    torch.manual_seed(0)
    model, data = Exponential().eval(), [torch.randn(8, 16) for _ in range(4)]
    found = Check(outputs=(OutputRow(name="y", sqnr=12.0, cosine=1.0, max_error=0.0),), least=20.0, batches=1)
    search = _Search(model, data, REFERENCE, lambda made, on: made, lambda made: found, None)
    search._start, search.amendments = 2.0, Amendments(grids={("", "x"): Regridded((), "")})
    search._spent = 2.0
    assert [limit.slower for limit in search._limits([], found)] == [0.1]
    search._cheap = 0.08
    assert [limit.slower for limit in search._limits([], found)] == [pytest.approx(0.02)]


def test_what_was_tried_in_vain_is_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gains 9 dB as predicted, and nothing as measured, is no advice."""
    model, data = Exponential().eval(), [torch.randn(8, 16)]
    found = Check(outputs=(OutputRow(name="y", sqnr=18.0, cosine=1.0, max_error=0.0),), least=10.0, batches=1)
    search = _Search(model, data, REFERENCE, lambda made, on: made, lambda made: found, None)
    reader = {"kind": "linear", "status": "int8", "weighted": True, "dynamic": True, "work": 1e6, "values": 1.0}
    noises = (("a", 0.02, 1e6), ("b", 0.0001, 1e8))
    sources = [
        Source(
            name=name,
            place=("", name),
            spec=fq.Spec(),
            is_weight=False,
            readers=(Reader(place=("", f"{name}_op"), path=name, **{**reader, "work": work}),),  # type: ignore[arg-type]
            noise={NOW: noise},
            calls=1.0,
        )
        for name, noise, work in noises
    ]
    tried: list[tuple[str, ...]] = []
    monkeypatch.setattr(search, "_try", lambda step, found, least: tried.append(step.names))
    assert search._round(sources, found) is None
    assert tried == [("a (weight_only)",)] and search.wanted is None


class OfOneSize(Collapsing):
    """Its code says how many samples a batch has."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).reshape(32, 4).view(8, 4, 4)


def test_a_model_of_one_batch_size_is_lifted_too() -> None:
    _, data = collapsing()
    torch.manual_seed(0)
    model = OfOneSize().eval()
    with pytest.warns(UserWarning, match="Lifted first"):
        made = fq.quantize(model, data, engine="reference")
    assert fq.check(model, made, data).cosine > 0.999
