"""A region remembers what was asked for until all is decided."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.graph.region import preparation_of


def test_the_request_stays_until_the_decision() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    custom = fq.PrepareCustomConfig().set_input_quantized_indexes([0])
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(1, 4),), custom, target="x86")
    request = preparation_of(prepared).request
    assert request is not None and request.target is not None
    assert (request.target.name, request.inputs, request.outputs, request.own_rules) == ("x86", (0,), (), False)
    assert preparation_of(decide(prepared)).request is None and preparation_of(prepared).request is request
