"""For OpenVINO the queries and keys of attention are signed, and nothing else differs from x86."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.config.spec import Spec
from fxquant.flows.decide import decide
from fxquant.graph.notes import decision_of, note_of
from fxquant.graph.region import Region, preparation_of, regions
from fxquant.numerics.affine import sqnr_db
from fxquant.targets import by_name
from zoo import EncoderBlock


def specs_into(region: Region, kind: str) -> list[Spec | None]:
    """The specs of the operands of the one op of a kind."""
    decisions = ((node, decision_of(node)) for node in region.graph.nodes)
    note = next(note_of(node) for node, decision in decisions if decision is not None and decision.kind == kind)
    assert note is not None
    return [preparation_of(region).quantizers[name] if name is not None else None for name in note.inputs]


def prepared(model: nn.Module, x: Tensor, qconfig: fq.QConfig | None = None) -> Region:
    target = by_name("openvino")
    made = decide(fq.prepare_fx(model.eval(), {"": qconfig or target.qconfig}, (x,), target=target))
    return next(region for _, region in regions(made))


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x).relu(), self.k(x), self.v(x))


def test_queries_and_keys_are_signed_and_the_rest_is_not() -> None:
    region = prepared(Attend(), torch.randn(2, 3, 5, 8))
    query, key = specs_into(region, "attention")
    assert query is not None and query.signed and query.symmetric
    assert key is not None and key.signed and key.symmetric
    (plain,) = specs_into(region, "linear")
    assert plain == by_name("x86").activation


def test_grids_with_a_learned_offset_lose_it() -> None:
    learned = by_name("x86").activation.with_(learn="lsq+")
    qconfig = fq.QConfig(activation=learned, weight=by_name("x86").weight.with_(learn="lsq"))
    target = by_name("openvino")
    made = fq.prepare_qat_fx(Attend().train(), {"": qconfig}, (torch.randn(2, 3, 5, 8),), target=target)
    query, _ = specs_into(next(region for _, region in regions(made)), "attention")
    assert query is not None and query.symmetric and query.learn == "lsq"


def test_attention_stays_close() -> None:
    torch.manual_seed(0)
    model, x = EncoderBlock(64).eval(), torch.randn(4, 16, 64)
    plain, int8 = (fq.quantize(model, [x], engine="reference", target=target)(x) for target in ("onednn", "openvino"))
    expected = model(x).detach()
    assert sqnr_db(expected, int8.detach()) > sqnr_db(expected, plain.detach()) - 2
