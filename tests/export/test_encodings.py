"""The JSON of graph and grids has what the converted model computes with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fxquant as fq
from zoo import ZOO

KEYS = {
    *("of", "scale", "zero_point", "bits", "signed", "quant_min", "quant_max", "min", "max", "symmetric", "axis"),
    *("group_size", "position"),
}


@pytest.mark.parametrize("target", ["xint8", "npu", "generic"])
def test_weights_activations_and_biases(target: str, tmp_path: Path) -> None:
    x = ZOO["plain"].inputs()[0]
    prepared = fq.prepare_fx(ZOO["plain"].build(), fq.get_default_qconfig_mapping(target), (x,), target=target)
    prepared(x)
    found = json.loads(fq.export_json(prepared, tmp_path / "m.json").read_text())["regions"][""]["tensors"]
    assert all(set(row) == KEYS for row in found.values())
    kinds = [row["of"] for row in found.values()]
    assert kinds.count("weight") == 3
    assert kinds.count("bias") == (0 if target == "generic" else 3)
    for row in found.values():
        scale, zero = (torch.tensor(row[key], dtype=torch.float64) for key in ("scale", "zero_point"))
        assert torch.equal(torch.tensor(row["min"], dtype=torch.float64), (row["quant_min"] - zero) * scale)
        assert torch.equal(torch.tensor(row["max"], dtype=torch.float64), (row["quant_max"] - zero) * scale)
        if target != "generic":
            assert torch.equal(2.0 ** -torch.tensor(row["position"], dtype=torch.float64), scale)
    bits = {row["bits"] for row in found.values() if row["of"] == "bias"}
    assert bits == {"xint8": {8}, "npu": {32}, "generic": set()}[target]
