"""The runner holds passes to their contract, and tells them about their own region."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.capture.capture import capture
from fxquant.graph.context import Context
from fxquant.graph.region import Region, regions
from fxquant.graph.run_passes import run_passes


def two_regions() -> nn.Module:
    def make() -> nn.Module:
        return capture(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), (torch.randn(1, 3),))

    return nn.ModuleDict({"head": make(), "body": make()})


def test_an_error_names_the_pass_and_the_region() -> None:
    def breaks(region: Region, context: Context) -> None:
        if region is model["body"]:
            del region._modules["0"]

    model = two_regions()
    with pytest.raises(fq.VerifyError, match="after 'breaks', region 'body'"):
        run_passes(model, (breaks,), Context())


def test_a_pass_that_returns_something_is_an_error() -> None:
    def returns(region: Region, context: Context) -> Region:
        return region

    with pytest.raises(fq.VerifyError, match=r"pass 'returns' returned a .* at region 'head'.*in place"):
        run_passes(two_regions(), (returns,), Context())  # type: ignore[arg-type]


def test_a_pass_gets_the_context_of_its_region_and_the_graph_is_compiled_after_it() -> None:
    def drop_relu(region: Region, context: Context) -> None:
        seen.append(context.path)
        last = next(node for node in region.graph.nodes if node.target == "1")
        last.replace_all_uses_with(last.args[0])
        region.graph.erase_node(last)

    model, seen, x = two_regions(), [], torch.randn(4, 3)
    contexts = {id(region): Context(path=path) for path, region in regions(model)}
    run_passes(model, (drop_relu,), lambda region: contexts[id(region)], only=lambda r: r is model["head"])
    assert seen == ["head"]
    assert torch.equal(model["head"](x), model["head"].get_submodule("0")(x))
    assert not torch.equal(model["body"](x), model["body"].get_submodule("0")(x))
