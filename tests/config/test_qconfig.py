"""QConfig: which tensor gets which spec, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest

import fxquant as fq

U8 = fq.Spec(signed=False, symmetric=False)
W8 = fq.Spec(granularity="per_channel", observer="minmax")


def test_input_and_output_override_activation() -> None:
    qconfig = fq.QConfig(
        activation=U8, weight=W8, output="float", input={1: "float", 2: W8.with_(granularity="per_tensor")}
    )
    assert qconfig.input_spec(0) is U8
    assert qconfig.input_spec(1) is None
    assert qconfig.input_spec(2) == W8.with_(granularity="per_tensor")
    assert qconfig.output_spec is None


def test_values_hash_copy_and_pickle() -> None:
    qconfig = fq.QConfig(activation=U8, weight=W8, input={0: "float"})
    assert len({qconfig, copy.deepcopy(qconfig), pickle.loads(pickle.dumps(qconfig))}) == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"activation": W8}, "activations are quantized per_tensor, or per_channel along another axis"),
        ({"weight": U8.with_(dynamic=True)}, "does not change at run time"),
        ({"activation": 8}, "expected a fxquant.Spec"),
        ({"output": "flaot"}, "expected a Spec"),
    ],
    ids=["per_channel_activation", "dynamic_weight", "number", "typo"],
)
def test_wrong_values_are_refused(kwargs: dict, message: str) -> None:
    with pytest.raises(fq.ConfigError, match=message):
        fq.QConfig(**kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"bits": 1},
        {"bits": 17},
        {"bits": 8.0},
        {"granularity": "per_row"},
        {"granularity": "per_group"},
        {"group_size": 32},
        {"observer": "fixed"},
        {"range": (0.0, 1.0)},
        {"observer": "fixed", "range": (1.0, 0.0)},
        {"percentile": 10.0},
        {"momentum": -0.1},
        {"rounding": "up"},
        {"scale": "pow3"},
        {"learn": "magic"},
        {"dynamic": True, "learn": "lsq"},
    ],
    ids=repr,
)
def test_spec_refuses(kwargs: dict) -> None:
    with pytest.raises(fq.ConfigError, match="Spec"):
        fq.Spec(**kwargs)


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_grid_fits_its_dtype(bits: int, signed: bool) -> None:
    import torch

    spec = fq.Spec(bits=bits, signed=signed)
    info = torch.iinfo(spec.dtype)
    assert info.min <= spec.quant_min < spec.quant_max <= info.max
    assert spec.quant_max - spec.quant_min == 2**bits - 1
