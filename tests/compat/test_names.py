"""Every public name of torch.ao.quantization is provided, or says what to use; what is provided means the same."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant import compat
from fxquant.compat.missing import MISSING
from fxquant.config.qconfig import as_qconfig
from fxquant.config.read_observer import read_factory

ao = pytest.importorskip("torch.ao.quantization")
PARTS = ("observer", "fake_quantize", "qconfig", "qconfig_mapping", "stubs", "quant_type", "fx.custom_config")
PUBLIC = {*ao.__all__, *(n for part in PARTS for n in importlib.import_module(f"{ao.__name__}.{part}").__all__)}
PUBLIC -= {"StandaloneModuleConfigEntry"}
BOTH = sorted(PUBLIC & {*compat.__all__})
X = torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(0))


def test_every_public_name_is_provided_or_says_what_to_use() -> None:
    assert PUBLIC - {*compat.__all__} - {*MISSING} == set()
    assert not {*compat.__all__} & {*MISSING}
    assert all(hasattr(compat, name) for name in compat.__all__)


@pytest.mark.parametrize("name", ["quantize_dynamic", "quantize_jit", "fuse_modules", "PerGroup"])
def test_a_missing_name_says_what_to_use(name: str) -> None:
    with pytest.raises(ImportError, match=f"fxquant has no '{name}': .+"):
        importlib.import_module("fxquant.compat").__getattr__(name)


@pytest.mark.parametrize(
    "name", [name for name in BOTH if name.startswith(("default", "float", "per_ch")) and "qconfig" in name]
)
def test_a_qconfig_means_what_it_means_in_torch_ao(name: str) -> None:
    theirs = getattr(ao, name, None) or getattr(ao.qconfig, name)
    assert getattr(compat, name) == as_qconfig(theirs)


@pytest.mark.parametrize(
    "name", [n for n in BOTH if n.startswith(("default", "fused", "per_ch", "weight")) and "qconfig" not in n]
)
def test_a_default_means_what_it_means_in_torch_ao(name: str) -> None:
    ours, theirs = getattr(compat, name), getattr(ao, name)
    assert ours().dtype == theirs().dtype
    if name != "default_debug_observer":
        assert read_factory(ours, "weight") == read_factory(theirs, "weight")


OBSERVERS: dict[str, dict[str, Any]] = {
    "MinMaxObserver": {"qscheme": torch.per_tensor_symmetric, "dtype": torch.qint8},
    "MovingAverageMinMaxObserver": {"averaging_constant": 0.5},
    "PerChannelMinMaxObserver": {"ch_axis": 1},
    "MovingAveragePerChannelMinMaxObserver": {"ch_axis": 1, "averaging_constant": 0.5},
    "HistogramObserver": {"reduce_range": True},
    "FixedQParamsObserver": {"scale": 0.25, "zero_point": 7},
}


@pytest.mark.filterwarnings("ignore:Please use quant_min")
@pytest.mark.parametrize("name", OBSERVERS)
def test_an_observer_by_itself(name: str) -> None:
    ours, theirs = getattr(compat, name)(**OBSERVERS[name]), getattr(ao, name)(**OBSERVERS[name])
    for batch in (X, X * 2):
        assert ours(batch) is batch
        theirs(batch)
    (scale, zero), (their_scale, their_zero) = ours.calculate_qparams(), theirs.calculate_qparams()
    assert scale.shape == their_scale.shape
    torch.testing.assert_close(scale, their_scale, rtol=0.15 if name == "HistogramObserver" else 0.01, atol=0)
    assert (zero - their_zero).abs().max() <= (8 if name == "HistogramObserver" else 1)
    assert (ours.quant_min, ours.quant_max) == (theirs.quant_min, theirs.quant_max)


def test_factories_chain_copy_and_make_arguments_anew() -> None:
    factory = compat.MinMaxObserver.with_args(dtype=torch.qint8).with_args(quant_min=-8, quant_max=7)
    assert factory().spec.bits == 4 and pickle.loads(pickle.dumps(factory))().spec == copy.deepcopy(factory)().spec
    calls = iter((3, 7))
    late = compat.MinMaxObserver.with_callable_args(quant_max=lambda: next(calls)).with_args(quant_min=0)
    assert [late().quant_max, late().quant_max] == [3, 7]
    assert "quant_max=7" in repr(factory)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compat.HistogramObserver(bins=64), "bins=64"),
        (lambda: compat.MinMaxObserver(ch_axis=1), "no argument 'ch_axis'"),
        (lambda: compat.MinMaxObserver(qscheme=torch.per_channel_affine), "per_tensor scheme"),
        (lambda: compat.MinMaxObserver(dtype=torch.int32), "dtype=torch.int32"),
        (lambda: compat.MinMaxObserver(quant_min=0), "together"),
        (lambda: compat.MinMaxObserver(quant_min=-1, quant_max=9), "limits around 0"),
        (lambda: compat.MinMaxObserver(factory_kwargs={"dtype": torch.float64}), "float32"),
        (lambda: compat.PlaceholderObserver(dtype=torch.quint8), "is_dynamic=True"),
        (lambda: compat.FakeQuantize(observer=compat.NoopObserver), "no grid"),
        (lambda: compat.FusedMovingAvgObsFakeQuantize(observer=compat.MinMaxObserver), "moving averages"),
        (lambda: fq.QConfig(compat.RecordingObserver, None), "keeps tensors"),
        (lambda: compat.get_default_qconfig("x86", version=7), "version=7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_honoured_is_refused(make: Any, message: str) -> None:
    with pytest.raises(fq.ConfigError, match=message):
        make()


def test_a_subclass_of_ours_is_run() -> None:
    class Wide(compat.MinMaxObserver):
        def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
            return self._calculate_qparams(self.min_val * 2, self.max_val * 2)

    prepared = fq.prepare_fx(nn.Sequential(nn.Linear(6, 6)).eval(), {"": fq.QConfig(Wide, None)}, (X,))
    assert fq.QConfig(Wide, None).activation.observer == "custom"  # type: ignore[union-attr]
    assert prepared(X).shape == X.shape


def test_fake_quantizers_round_and_learn() -> None:
    quantizer = compat.FakeQuantize(quant_min=0, quant_max=15)
    assert quantizer(X).unique().numel() <= 16
    learned = compat.LearnableFakeQuantize.with_args(observer=compat.MinMaxObserver)
    spec = fq.QConfig(learned, None).activation
    assert spec is not None and (spec.learn, spec.quant_max) == ("lsq+", 255)


def test_qconfig_dynamic_and_equality() -> None:
    assert compat.QConfigDynamic(weight=compat.default_weight_observer) == compat.default_dynamic_qconfig
    assert compat.qconfig_equals(compat.default_qconfig, ao.default_qconfig)
    assert not compat.qconfig_equals(compat.default_qconfig, None)
    assert compat.get_default_qconfig_dict("fbgemm")[""] == fq.get_default_qconfig("fbgemm")
