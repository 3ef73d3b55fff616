"""What is watched stands beside the float graph, goes when all is decided, and is handed on by tensor."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.graph.region import preparation_of
from fxquant.numerics.observers.channel_mean import ChannelMean, Means
from fxquant.passes.watch import float_name, forget, observed_tensors, seen


def test_a_decided_graph_has_what_was_seen_and_no_watchers() -> None:
    x = torch.rand(8, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), target="x86")
    assert torch.equal(prepared(x), model(x))
    decided = decide(prepared)
    assert observed_tensors(decided) == {"input_1_in": ("input_1",), "_1": ("_1",)}
    assert torch.equal(decided.get_submodule("quantizers.input_1_in").observer.high, x.max())
    assert not [node for node in decided.graph.nodes if "statistics" in str(node.target)]
    quantizer = next(node for node in decided.graph.nodes if node.target == "quantizers._1")
    assert float_name(decided, quantizer) == "_1"
    means = seen(decided, "_1", Means(channels=4, axis=-1))
    assert isinstance(means, ChannelMean)
    torch.testing.assert_close(means.mean(), model[:2](x).mean(0))
    assert seen(decided, "_1", Means(channels=5, axis=-1)) is None
    forget(decided)
    assert preparation_of(decided).statistics_path == "" and seen(decided, "_1", Means(channels=4, axis=-1)) is None
