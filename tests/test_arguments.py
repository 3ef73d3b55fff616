"""What users hand to the calls: ignored parts, a qconfig in the place of a mapping, a bar."""

from __future__ import annotations

import inspect
import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import fxquant as fq


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))).eval()


def quantized_paths(model: nn.Module) -> list[str]:
    return [row.path for row in fq.explain(model) if row.is_weighted and row.status != "float"]


@pytest.mark.parametrize(
    ("ignore", "left"),
    [(["2"], ["0"]), (["2.0"], ["0", "2.1"]), ([nn.ReLU], ["0", "2.0", "2.1"]), ([], ["0", "2.0", "2.1"])],
)
def test_what_is_ignored_stays_in_float(ignore: list[object], left: list[str]) -> None:
    quantized = fq.quantize(net(), [torch.randn(2, 4)], ignore=ignore, engine="reference")
    assert quantized_paths(quantized) == left
    assert (
        not any(row.kind == "relu" and row.status == "int8" for row in fq.explain(quantized)) or nn.ReLU not in ignore
    )


def test_ignore_goes_with_a_mapping_which_stays_as_it_is() -> None:
    mapping = fq.get_default_qconfig_mapping()
    before = mapping.to_dict()
    fq.quantize(net(), [torch.randn(2, 4)], qconfig_mapping=mapping, ignore=["2"])
    assert mapping.to_dict() == before


def test_what_cannot_be_ignored() -> None:
    data = [torch.randn(2, 4)]
    with pytest.raises(fq.ConfigError, match="Give a list"):
        fq.quantize(net(), data, ignore="2")
    with pytest.raises(fq.ConfigError, match="matches no module"):
        fq.quantize(net(), data, ignore=["nosuch"])
    with pytest.raises(fq.ConfigError, match="callables"):
        fq.quantize(net(), data, qconfig_mapping=lambda *site: None, ignore=["2"])


def test_a_module_is_ignored_by_its_path() -> None:
    with pytest.raises(fq.ConfigError, match=r"Give its path .* or its class, Linear\."):
        fq.quantize(net(), [torch.randn(2, 4)], ignore=[nn.Linear(4, 4)])


@pytest.mark.parametrize(("given", "told"), [("x86", r"mapping\('x86'\)"), (None, r"mapping\(\)"), (3, "int is not")])
def test_what_is_no_mapping_is_told_what_is(given: object, told: str) -> None:
    with pytest.raises(fq.ConfigError, match=told):
        fq.prepare_fx(net(), given, (torch.randn(2, 4),))


def test_quantize_names_itself_where_a_model_is_quantized_already() -> None:
    quantized = fq.quantize(net(), [torch.randn(2, 4)], engine="reference")
    with pytest.raises(fq.StageError, match="quantize got a model that is already converted"):
        fq.quantize(quantized, [torch.randn(2, 4)])


def test_nothing_in_int8_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="nothing in Sequential will be quantized"):
        fq.prepare_fx(net(), fq.QConfigMapping(), (torch.randn(2, 4),))


def test_a_qconfig_or_a_spec_in_the_place_of_a_mapping() -> None:
    x = torch.randn(2, 4)
    bare = fq.quantize(net(), [x], qconfig_mapping=fq.default_qconfig)
    mapped = fq.quantize(net(), [x], qconfig_mapping=fq.QConfigMapping().set_global(fq.default_qconfig))
    assert torch.equal(bare(x), mapped(x))
    weights = fq.quantize(net(), [x], qconfig_mapping=fq.weight_only_qconfig.weight)
    assert {row.status for row in fq.explain(weights) if row.is_weighted} == {"weight_only"}


def test_a_qconfig_of_torch_ao_in_the_place_of_a_mapping() -> None:
    ao = pytest.importorskip("torch.ao.quantization")
    x = torch.randn(2, 4)
    assert quantized_paths(fq.quantize(net(), [x], qconfig_mapping=ao.get_default_qconfig("x86"))) == [
        "0",
        "2.0",
        "2.1",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_shown_in_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            fq.quantize(net(), [torch.randn(2, 4) for _ in range(3)], progress=True)
        assert ("calibrating" in stream.getvalue()) == shown


def test_a_bar_does_not_take_more_batches_than_asked_for() -> None:
    taken = []
    prepared = fq.prepare_fx(net(), fq.default_qconfig, (torch.randn(2, 4),))
    fq.calibrate(prepared, (taken.append(1) or torch.randn(2, 4) for _ in range(5)), num_batches=2, progress=True)
    assert len(taken) <= 3


@pytest.mark.parametrize("call", [fq.quantize, fq.tune], ids=lambda call: call.__name__)
def test_arguments_for_others_are_named_and_others_refused(call: Callable[..., object]) -> None:
    shown, taken = inspect.signature(call).parameters, inspect.signature(fq.prepare_fx).parameters
    for name in ("method", "sizes", "strict", "concrete_args", "prepare_custom_config", "prepare_custom_config_dict"):
        assert shown[name].default == taken[name].default, name
    assert {"convert_custom_config", "convert_custom_config_dict"} <= set(shown)
    with pytest.raises(TypeError, match=r"\(\) has no argument 'metod'. Closest: 'method'"):
        call(net(), [torch.randn(2, 4)], **({"evaluate": float} if call is fq.tune else {}), metod="symbolic")


class Stream(IterableDataset[object]):
    """Data whose loader has a `__len__`, which raises."""

    def __init__(self, batches: Iterable[object]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[object]:
        return iter(self.batches)


def test_data_that_has_no_length_is_read() -> None:
    x = torch.linspace(-1, 1, 16).reshape(4, 4)
    loader: DataLoader[object] = DataLoader(Stream([x, x]), batch_size=None)
    assert quantized_paths(fq.quantize(net(), loader)) == ["0", "2.0", "2.1"]
    prepared = fq.prepare_fx(net(), fq.get_default_qconfig_mapping(), (x,))
    fq.calibrate(prepared, loader)
    assert quantized_paths(fq.convert_fx(prepared)) == ["0", "2.0", "2.1"]
    assert fq.check(net(), fq.convert_fx(prepared), loader).batches == 2
    trained = fq.prepare_qat_fx(net().train(), fq.get_default_qat_qconfig_mapping(), (x,))
    labelled: DataLoader[object] = DataLoader(Stream([(x, torch.zeros(4, dtype=torch.long))]), batch_size=None)
    assert len(fq.train_qat(trained, labelled, epochs=1, progress=False).history) == 1


def test_a_dict_may_be_the_one_argument() -> None:
    """As in data loaders of detectors: `forward(self, data)`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, data: dict[str, Tensor]) -> Tensor:
            return self.fc(data["image"])  # type: ignore[no-any-return]

    batch = {"image": torch.randn(2, 4), "boxes": torch.zeros(2, 4)}
    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping(), batch)
    assert fq.convert_fx(fq.calibrate(prepared, [batch]))(batch).shape == (2, 4)
    with pytest.raises(fq.CaptureError, match="missing a required argument: 'input'"):
        fq.prepare_fx(nn.Linear(4, 4).eval(), fq.get_default_qconfig_mapping(), {"image": torch.randn(2, 4)})


@pytest.mark.parametrize("stage", ["prepared", "converted"])
def test_fuse_fx_takes_float_models(stage: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    made = fq.calibrate(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,)), [x])
    made = made if stage == "prepared" else fq.convert_fx(made)
    with pytest.raises(fq.StageError, match=f"fuse_fx got a model that is already {stage}"):
        fq.fuse_fx(made)


def prepared() -> nn.Module:
    return fq.prepare_fx(net(), fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))


MAPPING = fq.get_default_qconfig_mapping()
X = torch.randn(2, 4)
WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "a class as a rule": (lambda a: fq.prepare_fx(net(), nn.Linear, (X,)), "type is not a qconfig mapping"),
    "example_kwargs": (lambda a: fq.prepare_fx(net(), MAPPING, (X,), example_kwargs=a), r"example_kwargs=5.*a dict"),
    "concrete_args": (lambda a: fq.prepare_fx(net(), MAPPING, (X,), concrete_args=a), r"concrete_args=5.*a dict"),
    "sizes": (lambda a: fq.prepare_fx(net(), MAPPING, (X,), sizes=a), "expected one of 'example', 'any'"),
    "method": (lambda a: fq.prepare_qat_fx(net().train(), MAPPING, (X,), method=a), "'auto', 'symbolic', 'export'"),
    "num_batches": (lambda a: fq.calibrate(prepared(), [X], num_batches=-a), "num_batches=-5.*1 or more"),
    "a text for num_batches": (lambda a: fq.calibrate(prepared(), [X], num_batches=str(a)), "a whole number"),  # type: ignore[arg-type]
    "num_batches of compare": (lambda a: fq.compare(net(), prepared(), [X], num_batches=-a), "1 or more"),
    "num_batches of check": (lambda a: fq.check(net(), prepared(), [X], num_batches=-a), "1 or more"),
    "least": (lambda a: fq.check(net(), prepared(), [X], least=str(a)), "expected a number"),  # type: ignore[arg-type]
    "num_batches of sensitivity": (lambda a: fq.sensitivity(net(), [X], num_batches=-a), "1 or more"),
    "budget": (lambda a: fq.quantize(net(), [X], budget=str(a)), r"quantize\(budget='5'\): expected a number"),  # type: ignore[arg-type]
    "effort": (lambda a: fq.quantize(net(), [X], effort=[a]), "Known: 'fast', 'balanced', 'best'"),  # type: ignore[arg-type]
    "path of save": (lambda a: fq.save(fq.quantize(net(), [X]), a), "path=5.*a text, or a path"),
    "path of load": (lambda a: fq.load(a), r"path=5.*a text, or a path"),
    "path of a target": (lambda a: fq.load_target(a), "a text, or a path"),
    "rates": (lambda a: fq.parameter_groups(net(), lr=a, range_lr=math.nan, weight_decay=a), "range_lr=nan.*0 or more"),
    "grids of places": (lambda a: fq.QConfig(input=(a,)), 'a Spec, "float" or None'),  # type: ignore[arg-type]
    "workers": (lambda a: fq.Processes(workers=str(a)), "a whole number"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_another_kind_are_told_what_is(name: str) -> None:
    call, told = WRONG[name]
    with pytest.raises(fq.ConfigError, match=told):
        call(5)


@pytest.mark.parametrize(
    "call",
    [
        fq.boundary_qparams,
        lambda model: fq.check_target(model, "x86"),
        fq.freeze_bn_stats,
        fq.unfreeze_bn_stats,
        fq.freeze_observers,
        fq.unfreeze_observers,
        lambda model: fq.parameter_groups(model, lr=1.0, range_lr=1.0, weight_decay=0.0),
    ],
)
def test_what_is_no_module_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(fq.CaptureError, match="got a NoneType, which is no module"):
        call(None)
