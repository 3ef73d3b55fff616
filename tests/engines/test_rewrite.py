"""Graphs that an engine rewrites stay rewritten, and can be saved as they were."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq
from fxquant.engines.rewrite import rewrite_regions
from fxquant.graph.region import Region
from fxquant.targets.x86 import x86


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def lower(region: Region) -> Region:
    (out,) = (node for node in region.graph.nodes if node.op == "output")
    with region.graph.inserting_before(out):
        out.args = (region.graph.call_function(double, out.args),)
    region.recompile()
    return region


def test_a_state_dict_leaves_the_graph_rewritten() -> None:
    engine = fq.Engine(name="x2", target=x86, available=lambda: True, apply=lambda m: rewrite_regions(m, lower))
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(8, 4)
    prepared = [fq.calibrate(fq.prepare_fx(model, {"": x86().qconfig}, (x,)), [data]) for data in (x, 3 * x)]
    plain = [fq.convert_fx(each, engine="reference")(x) for each in prepared]
    doubled, other = (fq.convert_fx(each, engine=engine) for each in prepared)
    assert torch.equal(doubled(x), 2 * plain[0])
    doubled.load_state_dict(other.state_dict())
    assert torch.equal(doubled(x), 2 * plain[1])
    assert not torch.equal(plain[0], plain[1])


def test_a_model_that_waits_is_rewritten_when_it_has_its_numbers() -> None:
    engine = fq.Engine(name="x2", target=x86, available=lambda: True, apply=lambda m: rewrite_regions(m, lower))
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(8, 4)
    prepared = fq.prepare_fx(model, {"": x86().qconfig}, (x,))
    waits = fq.convert_fx(prepared, engine=engine)
    fq.calibrate(prepared, [x])
    waits.load_state_dict(fq.convert_fx(prepared, engine="reference").state_dict())
    assert torch.equal(waits(x), 2 * fq.convert_fx(prepared, engine="reference")(x))
