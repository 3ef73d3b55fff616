"""torch.ao's BackendConfig as a Target: what it says is held to, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant import compat
from fxquant.numerics.affine import sqnr_db
from fxquant.targets import by_name
from fxquant.targets.backend_config import read_backend_config

backends = pytest.importorskip("torch.ao.quantization.backend_config")
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
INT8 = backends.DTypeConfig(torch.quint8, torch.quint8, torch.qint8, torch.float)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4)
    ).eval()


def only(*patterns: Any, dtype: Any = INT8) -> Any:
    entries = [backends.BackendPatternConfig(pattern).set_dtype_configs([dtype]) for pattern in patterns]
    return backends.BackendConfig("mine").set_backend_pattern_configs(entries)


@pytest.mark.parametrize("name", ["native", "x86", "fbgemm", "qnnpack", "onednn", "executorch"])
@pytest.mark.parametrize("form", ["object", "dict"])
def test_the_default_configs_pass(name: str, form: str) -> None:
    config = getattr(backends, f"get_{name}_backend_config", None) or backends.get_native_backend_config
    config = config() if form == "object" else config().to_dict()
    prepared = fq.prepare_fx(net(), fq.get_default_qconfig_mapping("x86"), (X,), backend_config=config)
    fq.calibrate(prepared, [X])
    converted = fq.convert_fx(prepared, backend_config=config)
    assert fq.explain(converted).int8_share == 1
    assert sqnr_db(net()(X), converted(X)) > 20


def test_the_default_mapping_of_torch_ao_fits() -> None:
    ao = pytest.importorskip("torch.ao.quantization")
    config = backends.get_native_backend_config()
    for name in ("x86", "qnnpack"):
        fq.prepare_fx(net(), ao.get_default_qconfig_mapping(name), (X,), backend_config=config)


def test_fields() -> None:
    native = read_backend_config(backends.get_native_backend_config(), by_name(None)).target
    assert {"conv2d", "linear", "add", "cat"} <= native.kinds and "gelu" not in native.kinds
    assert native.tails["conv2d"] == {"relu"} and not native.residual
    assert "adaptive_avg_pool" in native.share
    onednn = read_backend_config(backends.get_onednn_backend_config(), by_name(None)).target
    assert onednn.residual == {"conv2d"} and onednn.tails["linear"] == {"relu", "leaky_relu", "tanh"}


def test_ops_that_are_not_named_stay_in_float() -> None:
    prepared = fq.prepare_fx(net(), fq.get_default_qconfig_mapping("x86"), (X,), backend_config=only(nn.Conv2d))
    rows = {row.path: row for row in fq.explain(prepared) if row.is_weighted}
    assert {path: row.status for path, row in rows.items()} == {"0": "int8", "3": "int8", "5": "float"}
    assert rows["5"].reason == "target mine has no int8 kernel for linear"


class Own(nn.Module):
    pass


SIGNED = backends.DTypeConfig(torch.qint8, torch.qint8, torch.qint8, torch.float)
NARROW = backends.DTypeConfig(
    torch.quint8, torch.quint8, backends.DTypeWithConstraints(torch.qint8, quant_min_lower_bound=-127)
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (only(nn.Conv2d, Own), "pattern Own"),
        (
            backends.BackendConfig().set_backend_pattern_config(
                backends.BackendPatternConfig(nn.Conv2d).set_dtype_configs([INT8]).set_fused_module(Own)
            ),
            "fused_module=Own",
        ),
        (only(nn.Conv2d, dtype=SIGNED), "no entry for activations of u8"),
        (only(nn.Conv2d, dtype=NARROW), "no entry for activations of u8"),
        ("x86", "is a str"),
    ],
    ids=["pattern", "module", "dtype", "constraint", "type"],
)
def test_what_a_target_cannot_hold_is_refused(config: Any, message: str) -> None:
    with pytest.raises(fq.ConfigError, match=message):
        fq.prepare_fx(
            net(), {"": fq.QConfig(fq.Spec(signed=False, symmetric=False), fq.Spec())}, (X,), backend_config=config
        )


@pytest.mark.parametrize("dtype", [SIGNED, NARROW], ids=["signed", "narrow"])
def test_a_qconfig_inside_of_the_constraints_passes(dtype: Any) -> None:
    activation = compat.MinMaxObserver.with_args(dtype=torch.qint8 if dtype is SIGNED else torch.quint8)
    qconfig = fq.QConfig(activation, compat.weight_observer_range_neg_127_to_127)  # type: ignore[arg-type]
    fq.prepare_fx(net(), {"": qconfig}, (X,), backend_config=only(nn.Conv2d, dtype=dtype))


def test_both_at_once_are_refused() -> None:
    with pytest.raises(fq.ConfigError, match="not both"):
        fq.prepare_fx(net(), {"": None}, (X,), target="x86", backend_config=only(nn.Conv2d))
