"""Multi-head attention and the transformer layers: equal to the stock ones in float, int8 linears when quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.modules import MultiheadAttention, Transformer, TransformerDecoder, TransformerEncoder
from fxquant.numerics.affine import sqnr_db

MODES = {
    "static": fq.get_default_qconfig_mapping("x86"),
    "dynamic": fq.QConfigMapping().set_global(fq.default_dynamic_qconfig),
    "weight_only": fq.QConfigMapping().set_global(fq.weight_only_qconfig),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True, "batch_first": True},
    {"kdim": 6, "vdim": 10},
    {"add_bias_kv": True, "add_zero_attn": True, "dropout": 0.1},
]


def close(ours: Tensor | None, theirs: Tensor | None) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("masks", ["none", "bool", "float", "per head", "padding", "both"])
@pytest.mark.parametrize("weights", ["no weights", "mean", "per head"])
def test_the_float_form_is_the_stock_module(options: dict[str, Any], batched: bool, masks: str, weights: str) -> None:
    module = nn.MultiheadAttention(8, 2, **options).eval()
    ours = MultiheadAttention.from_float(module)
    lead = (3,) if batched else ()

    def tokens(length: int, size: int) -> Tensor:
        x = torch.randn(*lead, length, size)
        return x.transpose(0, 1) if batched and not module.batch_first else x

    q, k, v = tokens(4, 8), tokens(5, module.kdim), tokens(5, module.vdim)
    kwargs: dict[str, Any] = {"need_weights": weights != "no weights", "average_attn_weights": weights == "mean"}
    causal = torch.ones(4, 5, dtype=torch.bool).triu(1)
    if masks in ("bool", "both"):
        kwargs["attn_mask"] = causal
    if masks == "float":
        kwargs["attn_mask"] = torch.randn(4, 5)
    if masks == "per head":
        kwargs["attn_mask"] = torch.randn(6 if batched else 2, 4, 5)
    if masks in ("padding", "both"):
        kwargs["key_padding_mask"] = torch.zeros(*lead, 5, dtype=torch.bool).index_fill(-1, torch.tensor([4]), True)
    with torch.no_grad():
        got, wanted = ours(q, k, v, **kwargs), module(q, k, v, **kwargs)
    close(got[0], wanted[0])
    close(got[1], wanted[1])


class Block(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=batch_first)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


@pytest.mark.broad
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_attention_is_quantized_inside_a_model(mode: str, batch_first: bool, method: Any) -> None:
    model, data = Block(batch_first).eval(), [torch.randn(2, 6, 32) for _ in range(6)]
    prepared = fq.prepare_fx(model, MODES[mode], (data[0],), method=method)
    with torch.no_grad():
        torch.testing.assert_close(prepared(data[0]), model(data[0]), atol=1e-5, rtol=1e-4)
        fq.calibrate(prepared, data)
        converted = fq.convert_fx(prepared)
        assert sqnr_db(model(data[0]), converted(data[0])) > 25
    wanted = {"static": "int8"}.get(mode, mode)
    found = {row.path: row.status for row in fq.explain(converted) if row.kind == "linear"}
    names = [*(f"attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")), "mlp.0", "mlp.2"]
    assert found == dict.fromkeys(names, wanted)


def test_a_traced_block_takes_unbatched_inputs_too() -> None:
    model, x = Block(True).eval(), torch.randn(2, 6, 32)
    prepared = fq.prepare_fx(model, MODES["static"], (x,), method="symbolic")
    torch.testing.assert_close(prepared(x[0]), model(x[0]), atol=1e-5, rtol=1e-4)


def test_a_rule_for_the_class_holds_inside() -> None:
    mapping = fq.get_default_qconfig_mapping("x86").set_object_type(nn.MultiheadAttention, None)
    prepared = fq.prepare_fx(Block(True).eval(), mapping, (torch.randn(2, 6, 32),))
    assert type(prepared.get_submodule("attn")) is nn.MultiheadAttention
    mapping = fq.QConfigMapping().set_object_type(nn.MultiheadAttention, fq.weight_only_qconfig)
    prepared = fq.prepare_fx(Block(True).eval(), mapping, (torch.randn(2, 6, 32),))
    found = {row.path: row.status for row in fq.explain(prepared) if row.kind == "linear"}
    assert found["attn.q_proj"] == "weight_only" and found["mlp.0"] == "float"


def test_an_attention_whose_weights_are_used_by_hand_is_left_alone() -> None:
    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.fc = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.linear(x, self.attn.in_proj_weight[:8]))

    model, x = ByHand().eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, MODES["static"], (x,))
    torch.testing.assert_close(prepared(x), model(x))


def transformer(**options: Any) -> nn.Transformer:
    return nn.Transformer(32, 4, 2, 2, 64, **options).eval()


@pytest.mark.broad
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_transformer_in_float_and_int8(norm_first: bool, batch_first: bool, activation: str) -> None:
    model = transformer(norm_first=norm_first, batch_first=batch_first, activation=activation)
    data = [(torch.randn(6, 6, 32), torch.randn(6, 6, 32)) for _ in range(4)]
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    with torch.no_grad():
        ours = Transformer.from_float(model)(*data[0], tgt_mask=mask, tgt_is_causal=True)
        close(ours, model(*data[0], tgt_mask=mask, tgt_is_causal=True))
        prepared = fq.prepare_fx(model, MODES["static"], data[0], method="symbolic")
        converted = fq.convert_fx(fq.calibrate(prepared, data))
        assert sqnr_db(model(*data[0]), converted(*data[0])) > 20
    rows = [row for row in fq.explain(converted) if row.kind == "linear"]
    assert len(rows) == 2 * 6 + 2 * 10 and {row.status for row in rows} == {"int8"}


def test_an_encoder_clears_padding_as_the_stock_one_does() -> None:
    model = transformer(batch_first=True).encoder
    ours, x = TransformerEncoder.from_float(model), torch.randn(2, 6, 32)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(ours(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding))


@pytest.mark.parametrize("padded", [(4, 5), (0, 1)], ids=["at the end", "in front"])
def test_an_encoder_with_padding_can_be_saved(padded: tuple[int, int], tmp_path: Path) -> None:
    model, x = transformer(batch_first=True).encoder, torch.randn(2, 6, 32)
    batch = {"src": x, "src_key_padding_mask": torch.zeros(2, 6, dtype=torch.bool)}
    batch["src_key_padding_mask"][1, list(padded)] = True
    quantized = fq.quantize(model, [batch])
    loaded = fq.load(fq.save(quantized, tmp_path / "encoder.fq"))
    with torch.no_grad():
        assert torch.equal(loaded(**batch), quantized(**batch))
        assert sqnr_db(model(**batch), loaded(**batch)) > 20


def test_a_decoder_with_all_masks() -> None:
    model = transformer(batch_first=True).decoder
    ours, x, memory = TransformerDecoder.from_float(model), torch.randn(2, 5, 32), torch.randn(2, 6, 32)
    kwargs = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5),
        "memory_mask": torch.randn(5, 6),
        "tgt_key_padding_mask": torch.tensor([[0.0] * 5, [0.0] * 4 + [float("-inf")]]),
        "memory_key_padding_mask": torch.tensor([[0.0] * 6, [0.0] * 5 + [float("-inf")]]),
    }
    with torch.no_grad():
        close(ours(x, memory, **kwargs), model(x, memory, **kwargs))


def test_one_layer_of_an_encoder_can_stay_in_float() -> None:
    model = transformer(batch_first=True).encoder
    mapping = fq.get_default_qconfig_mapping("x86").set_module_name("layers.1", None)
    prepared = fq.prepare_fx(model, mapping, (torch.randn(2, 6, 32),))
    found = {row.path: row.status for row in fq.explain(prepared) if row.kind == "linear"}
    assert found["layers.0.linear1"] == found["layers.0.self_attn.q_proj"] == "int8"
    assert found["layers.1.linear1"] == found["layers.1.self_attn.q_proj"] == "float"
