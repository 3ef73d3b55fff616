"""A target that has no kernel for an op gets it as smaller ones, with the rule of the whole."""

from __future__ import annotations

import torch
from torch import nn

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.graph.amendments import Amendments, Lifted
from fxquant.graph.notes import decision_of
from fxquant.targets import by_name


def test_silu_is_two_ops_where_the_target_says_so() -> None:
    x = torch.randn(2, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 4)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))

    def kinds(target: str) -> list[str]:
        decided = decide(prepared, target=by_name(target))
        assert torch.allclose(decided(x), model(x), atol=1e-6)
        return [decision.kind for node in decided.graph.nodes if (decision := decision_of(node)) is not None]

    assert kinds("x86") == ["linear", "silu", "linear"]
    assert kinds("onnxruntime") == ["linear", "sigmoid", "mul", "linear"]


def test_a_part_of_a_split_op_can_be_lifted() -> None:
    x = torch.randn(2, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 4)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), target="onnxruntime")
    lifted = Amendments(lifts={("", "mul"): Lifted("float", "lifted to float: it is noisy")})
    rows = {row.kind: row for row in fq.explain(decide(prepared, amendments=lifted))}
    assert rows["mul"].status == "float" and "it is noisy" in rows["mul"].reason
