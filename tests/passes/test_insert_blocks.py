"""In training a weighted op is a block with its batch norm; freezing folds that, and takes dropout out."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq
from fxquant.graph.region import Region
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.weights.qat_block import QatBlock


def trained() -> Region:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 2, 1))
    prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping("x86"), (torch.randn(2, 3, 4, 4),))
    prepared(torch.randn(8, 3, 4, 4))
    assert isinstance(prepared, Region)
    return prepared


def test_blocks_stand_at_the_paths_of_the_ops_and_call_their_norms() -> None:
    prepared = trained()
    blocks = {path: module for path, module in prepared.named_modules() if type(module) is QatBlock}
    assert list(blocks) == ["0", "4"]
    assert blocks["0"].norm is prepared.get_submodule("1") and blocks["4"].norm is None
    assert "1" not in {node.target for node in prepared.graph.nodes}  # paired


def test_what_is_frozen_computes_the_same_without_norm_and_dropout() -> None:
    prepared = trained().eval()
    frozen, x = fq.freeze(prepared), torch.randn(2, 3, 4, 4)
    assert torch.allclose(frozen(x), prepared(x), atol=1e-5)
    assert isinstance(frozen.get_submodule("1"), nn.Identity)
    assert "3" not in {node.target for node in frozen.graph.nodes}
    assert {module.state for module in frozen.modules() if isinstance(module, FakeQuant)} == {"frozen"}
