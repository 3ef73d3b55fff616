"""The verifier names the pass, the region and the node when an invariant breaks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.graph import torch_compat
from fxquant.graph.invariants import verify
from fxquant.graph.notes import Note
from fxquant.graph.region import Region


def prepared() -> Region:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    return fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(1, 3, 4, 4),))


def decided() -> Region:
    return decide(prepared())


def converted() -> Region:
    region = prepared()
    region(torch.randn(1, 3, 4, 4))
    return fq.convert_fx(region, engine="reference")


def node(region: Region, name: str):
    return next(n for n in region.graph.nodes if n.name == name)


def bypass(region: Region) -> None:
    conv = node(region, "_2")
    conv.args = (node(region, "_1"),)


def unknown_quantizer(region: Region) -> None:
    node(region, "_2").meta["note"] = Note(inputs=("nowhere",))


def live_meta(region: Region) -> None:
    node(region, "_2").meta["note"] = (node(region, "_1"),)


def missing_module(region: Region) -> None:
    del region._modules["2"]


def drop_output(region: Region) -> None:
    quantizer = next(iter(node(region, "_1").users))
    quantizer.replace_all_uses_with(node(region, "_1"))
    region.graph.erase_node(quantizer)


BROKEN = {
    "bypass": (bypass, "'_2'.*should come from quantizer"),
    "unknown_quantizer": (unknown_quantizer, "'_2'.*names quantizer 'nowhere'"),
    "live_meta": (live_meta, "'_2'.*only plain values"),
    "missing_module": (missing_module, "'_2'|malformed"),
    "drop_output": (drop_output, "should (be quantized by|come from)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_prepared_graph_is_found(name: str) -> None:
    breaks, message = BROKEN[name]
    region = decided()
    verify(region, pass_name="nothing")
    breaks(region)
    with pytest.raises(fq.VerifyError, match=f"after 'a_pass', region '<root>'.*({message})"):
        verify(region, pass_name="a_pass")


def test_scales_of_a_converted_graph_are_numbers_and_positive() -> None:
    region = converted()
    quantize = next(n for n in region.graph.nodes if n.target is torch_compat.QUANTIZE)
    quantize.args = (quantize.args[0], -1.0, *quantize.args[2:])
    with pytest.raises(fq.VerifyError, match=f"{quantize.name}.*positive"):
        verify(region, pass_name="convert")


def test_weights_of_a_converted_graph_are_integers() -> None:
    region = converted()
    region.get_submodule("0").weight = region.get_submodule("0").weight.float()
    with pytest.raises(fq.VerifyError, match="stored as integers"):
        verify(region, pass_name="convert")
