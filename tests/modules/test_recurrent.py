"""LSTM, GRU and RNN of linears: equal to the stock ones in float, close to them in int8."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import fxquant as fq
from fxquant.capture.symbolic.wrap import is_wrapped
from fxquant.modules import GRU, LSTM, RNN
from fxquant.numerics.affine import sqnr_db

STOCK: dict[type[nn.RNNBase], type[nn.Module]] = {nn.LSTM: LSTM, nn.GRU: GRU, nn.RNN: RNN}
MODES = {
    "static": fq.get_default_qconfig_mapping("x86"),
    "dynamic": fq.QConfigMapping().set_global(fq.default_dynamic_qconfig),
    "weight_only": fq.QConfigMapping().set_global(fq.weight_only_qconfig),
}
OPTIONS = [
    dict(zip(("num_layers", "bidirectional", "batch_first", "bias"), values, strict=True))
    for values in itertools.product((1, 2), (False, True), (False, True), (True, False))
]


def same(ours: Any, theirs: Any) -> None:
    for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def states(module: nn.RNNBase, batch: int) -> Any:
    count = module.num_layers * (2 if module.bidirectional else 1)
    h = torch.randn(count, batch, module.proj_size or module.hidden_size)
    return (h, torch.randn(count, batch, module.hidden_size)) if isinstance(module, nn.LSTM) else h


@pytest.mark.parametrize(
    ("cls", "more"),
    [(nn.LSTM, {}), (nn.LSTM, {"proj_size": 3}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"})],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_float_form_is_the_stock_module(
    cls: type[nn.RNNBase], more: dict[str, Any], options: dict[str, Any]
) -> None:
    module = cls(5, 6, **options, **more).eval()
    ours = STOCK[cls].from_float(module)
    x = torch.randn(4, 7, 5)
    same(ours(x), module(x))
    hx = states(module, 4 if options["batch_first"] else 7)
    same(ours(x, hx), module(x, hx))
    same(ours(x[0]), module(x[0]))
    for lengths, ordered in (([4, 3, 1], True), ([1, 4, 2], False)):
        packed = pack_padded_sequence(
            torch.randn(3, 4, 5) if options["batch_first"] else torch.randn(4, 3, 5),
            torch.tensor(lengths),
            batch_first=options["batch_first"],
            enforce_sorted=ordered,
        )
        same(ours(packed), module(packed))
        hx = states(module, 3)
        same(ours(packed, hx), module(packed, hx))


def test_dropout_runs_between_layers_in_train_mode_only() -> None:
    module = LSTM.from_float(nn.LSTM(5, 6, num_layers=2, dropout=0.5))
    x = torch.randn(4, 7, 5)
    assert not torch.equal(module.train()(x)[0], module(x)[0])
    assert torch.equal(module.eval()(x)[0], module(x)[0])


class Tagger(nn.Module):
    def __init__(self, cls: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(32, 32)
        self.rnn = cls(32, 32, **options)
        width = (self.rnn.proj_size or 32) * (2 if self.rnn.bidirectional else 1)
        self.out = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(torch.relu(self.embed(x)))
        return self.out(y)


@pytest.mark.broad
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"proj_size": 16, "batch_first": True}),
        (nn.GRU, {"num_layers": 2}),
        (nn.RNN, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_quantized_inside_a_model(cls: type[nn.RNNBase], options: dict[str, Any], mode: str) -> None:
    model, data = Tagger(cls, **options).eval(), [torch.randn(6, 4, 32) for _ in range(6)]
    prepared = fq.prepare_fx(model, MODES[mode], (data[0],))
    longer = torch.randn(11, 3, 32)  # another length and batch than the example's
    torch.testing.assert_close(prepared(longer), model(longer), atol=1e-5, rtol=1e-4)
    fq.calibrate(prepared, data)
    converted = fq.convert_fx(prepared, engine="onednn")
    assert sqnr_db(model(longer), converted(longer)) > 25
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(other(longer), converted(longer))
    rows = [row for row in fq.explain(converted) if row.kind == "linear"]
    count = 2 * len(tuple(converted.rnn.layers)) * (2 if model.rnn.bidirectional else 1)
    count += bool(model.rnn.proj_size)
    assert len(rows) == 2 + count
    assert {row.status for row in rows} == {{"static": "int8"}.get(mode, mode)}


@pytest.mark.parametrize("cls", STOCK, ids=lambda cls: cls.__name__)
def test_quantized_by_itself(cls: type[nn.RNNBase]) -> None:
    module, data = cls(32, 32).eval(), [torch.randn(6, 4, 32) for _ in range(4)]
    converted = fq.quantize(module, data)
    assert sqnr_db(module(data[0])[0], converted(data[0])[0]) > 25


@pytest.mark.parametrize(
    "mapping",
    [
        fq.get_default_qconfig_mapping("x86").set_object_type(nn.LSTM, None),
        fq.get_default_qconfig_mapping("x86").set_module_name("rnn", None),
        fq.QConfigMapping().set_module_name("out", fq.get_default_qconfig("x86")),
    ],
    ids=["class", "name", "no rule"],
)
def test_a_rule_keeps_the_stock_module(mapping: Any) -> None:
    prepared = fq.prepare_fx(Tagger(nn.LSTM).eval(), mapping, (torch.randn(3, 2, 32),))
    assert type(prepared.get_submodule("rnn")) is nn.LSTM


def test_a_rule_for_the_class_holds_for_the_linears_inside() -> None:
    mapping = fq.QConfigMapping().set_object_type(nn.LSTM, fq.default_dynamic_qconfig)
    prepared = fq.prepare_fx(Tagger(nn.LSTM).eval(), mapping, (torch.randn(3, 2, 32),))
    found = {row.path: (row.status, row.rule) for row in fq.explain(prepared)}
    assert found["rnn.layers.0.0.ih"] == found["rnn.layers.0.0.step.hh"] == ("dynamic", "object_type=LSTM")
    assert found["out"][0] == "float"


def test_int8_weights_are_what_is_stored() -> None:
    model, data = Tagger(nn.LSTM).eval(), [torch.randn(6, 4, 32)]
    converted = fq.quantize(model, data)
    assert converted.state_dict()["rnn.layers.0.0.step.hh.weight"].dtype == torch.int8
    assert {name.rpartition(".")[2] for name, _ in converted.named_parameters()} == {"weight_scale"}


def test_the_model_itself_keeps_its_lstm() -> None:
    model = Tagger(nn.LSTM).eval()
    fq.prepare_fx(model, MODES["static"], (torch.randn(3, 2, 32),))
    assert type(model.rnn) is nn.LSTM and is_wrapped(LSTM.from_float(model.rnn))


@pytest.mark.parametrize(
    ("cls", "options"),
    [(nn.LSTMCell, {}), (nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, {"nonlinearity": "relu", "bias": False})],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_cells_in_a_loop_of_the_user(cls: type[nn.RNNCellBase], options: dict[str, Any]) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cls(32, 32, **options)

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for step in range(4):
                state = self.cell(x[step], state)
            return state[0] if cls is nn.LSTMCell else state

    model, data = Loop().eval(), [torch.randn(4, 3, 32) for _ in range(6)]
    prepared = fq.prepare_fx(model, MODES["static"], (data[0],), method="symbolic")
    torch.testing.assert_close(prepared(data[0]), model(data[0]), atol=1e-6, rtol=1e-5)
    converted = fq.convert_fx(fq.calibrate(prepared, data))
    assert sqnr_db(model(data[0]), converted(data[0])) > 25
    rows = [row for row in fq.explain(converted) if row.kind == "linear"]
    assert {row.path for row in rows} == {"cell.ih", "cell.step.hh"} and {row.status for row in rows} == {"int8"}
