"""Rules are asked once, on the graph as the user wrote it; without rules the answers of before stand."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import fxquant as fq
from fxquant.capture import capture
from fxquant.config.rules import Rules
from fxquant.graph.context import Context
from fxquant.graph.run_passes import run_passes
from fxquant.ops.table import OPS
from fxquant.passes.candidates import choice_of, same_op
from fxquant.passes.choose import choose, fusion_allowed, see_ops


def test_every_call_carries_the_rule_that_won() -> None:
    mapping = fq.get_default_qconfig_mapping().set_module_name("1", None)
    rules = Rules(mapping, partial(same_op, OPS))
    region = capture(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), (torch.randn(1, 2),))
    context = Context(rules=rules)
    run_passes(region, (see_ops, choose, choose), context)
    linear, relu = (node for node in region.graph.nodes if node.op == "call_module")
    answers = [choice_of(node) for node in (linear, relu)]
    assert [answer.rule for answer in answers] == ["global", "module_name='1'"]
    assert [fusion_allowed(region, context)(node) for node in (linear, relu)] == [True, False]
    run_passes(region, (choose,), Context())
    assert [choice_of(node) for node in (linear, relu)] == answers
    assert rules.unmatched(["0", "1"]) == []
