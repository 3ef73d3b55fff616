"""Code around a stock module takes its quantizable form for it, or the module stays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.modules.substitute import FORMS
from fxquant.numerics.affine import sqnr_db

MODULES: dict[type[nn.Module], Callable[[], nn.Module]] = {
    nn.LSTM: lambda: nn.LSTM(8, 8, num_layers=2, bidirectional=True, proj_size=4),
    nn.GRU: lambda: nn.GRU(8, 8, bias=False),
    nn.RNN: lambda: nn.RNN(8, 8, nonlinearity="relu"),
    nn.LSTMCell: lambda: nn.LSTMCell(8, 8),
    nn.GRUCell: lambda: nn.GRUCell(8, 8),
    nn.RNNCell: lambda: nn.RNNCell(8, 8, nonlinearity="relu"),
    nn.MultiheadAttention: lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
    nn.TransformerEncoderLayer: lambda: nn.TransformerEncoderLayer(8, 2, 16),
    nn.TransformerDecoderLayer: lambda: nn.TransformerDecoderLayer(8, 2, 16),
    nn.TransformerEncoder: lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1),
    nn.TransformerDecoder: lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 1),
    nn.Transformer: lambda: nn.Transformer(8, 2, 1, 1, 16),
}
SETTINGS = (
    "mode",
    "nonlinearity",
    "hidden_size",
    "num_layers",
    "bidirectional",
    "num_heads",
    "embed_dim",
    "norm_first",
)


@pytest.mark.parametrize("cls", FORMS, ids=lambda cls: cls.__name__)
def test_a_form_is_what_it_stands_for(cls: type[nn.Module]) -> None:
    stock = MODULES[cls]()
    form = FORMS[cls](stock)
    for each in (form, copy.copy(form), copy.deepcopy(form), pickle.loads(pickle.dumps(form))):
        assert type(each) is type(form) is not cls
        assert isinstance(each, cls)
    for name in SETTINGS:
        assert getattr(form, name, None) == getattr(stock, name, None), name


@pytest.mark.parametrize("cls", FORMS, ids=lambda cls: cls.__name__)
def test_a_form_has_the_tensors_of_what_it_stands_for(cls: type[nn.Module]) -> None:
    stock = MODULES[cls]()
    form = FORMS[cls](stock)
    for name, parameter in stock._parameters.items():
        mine = getattr(form, name)
        assert parameter is mine is None or torch.equal(mine, parameter), name
    if isinstance(stock, nn.RNNBase):
        form.flatten_parameters()
        for ours, theirs in zip(form.all_weights, stock.all_weights, strict=True):
            assert all(map(torch.equal, ours, theirs))
        with pytest.raises(AttributeError, match="weight_ih_l7"):
            _ = form.weight_ih_l7


@pytest.mark.parametrize("cls", FORMS, ids=lambda cls: cls.__name__)
def test_a_form_loads_a_checkpoint_of_what_it_stands_for(cls: type[nn.Module]) -> None:
    stock, form = MODULES[cls](), FORMS[cls](copy.deepcopy(MODULES[cls]()))
    form.load_state_dict(stock.state_dict())
    again = FORMS[cls](stock).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in form.state_dict().items())
    form.load_state_dict(again)


class Around(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.last = inside, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inside(x, x, x) if isinstance(self.inside, nn.MultiheadAttention) else self.inside(x)
        return self.last(found[0])  # type: ignore[no-any-return]


INSIDE: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Around(nn.LSTM(8, 4, num_layers=2, bidirectional=True)),
    "attention": lambda: Around(nn.MultiheadAttention(8, 2)),
    "alone": lambda: nn.GRU(8, 4),
}


@torch.no_grad()
@pytest.mark.parametrize("stage", ["prepared", "trained", "converted"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_float_checkpoint_loads_into_a_prepared_model(name: str, stage: str) -> None:
    """With `strict=False` it would have been left out in silence; a converted model refuses it."""
    model, other, x = INSIDE[name]().eval(), INSIDE[name](), torch.randn(3, 2, 8)
    if stage == "trained":
        made = fq.prepare_qat_fx(other.train(), fq.get_default_qat_qconfig_mapping(), (x,)).eval()
        for module in made.modules():
            if hasattr(module, "enable_fake_quant"):
                module.enable_fake_quant(False)
    else:
        made = fq.prepare_fx(other.eval(), fq.get_default_qconfig_mapping(), (x,))
    if stage == "converted":
        made = fq.convert_fx(fq.calibrate(made, [x]), engine="reference")
        with pytest.raises(RuntimeError, match="not converted"):
            made.load_state_dict(model.state_dict(), strict=False)
        return
    assert made.load_state_dict(model.state_dict(), strict=False).unexpected_keys == []
    ours, theirs = (found[0] if name == "alone" else found for found in (made(x), model(x)))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_joined_projections_of_attention() -> None:
    stock = nn.MultiheadAttention(8, 2)
    form = FORMS[nn.MultiheadAttention](stock)
    assert torch.equal(form.in_proj_weight, stock.in_proj_weight)
    assert torch.equal(form.in_proj_bias, stock.in_proj_bias)
    assert form.q_proj_weight is None
    assert form._qkv_same_embed_dim


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "isinstance": lambda m, x: _last(m.rnn(x), isinstance(m.rnn, nn.LSTM)),
    "mode": lambda m, x: _last(m.rnn(x), m.rnn.mode == "LSTM"),
    "flatten": lambda m, x: m.rnn.flatten_parameters() or m.rnn(x)[0],
    "zeros": lambda m, x: m.rnn(x, (next(m.rnn.parameters()).new_zeros(1, x.shape[0], 8),) * 2)[0],
    "dtype": lambda m, x: m.rnn(x.to(m.rnn.weight_ih_l0.dtype))[0],
    "attention": lambda m, x: m.attend(x, x, x)[0] + F.linear(x, m.attend.in_proj_weight[:8]),
    "attention_type": lambda m, x: m.attend(x.to(m.attend.in_proj_weight.device), x, x)[0],
}


def _last(result: Any, has_cell: bool) -> Tensor:
    state: Tensor = result[1][0] if has_cell else result[1]
    return state[-1]


class Net(nn.Module):
    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.rnn, self.attend = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


@pytest.mark.parametrize("use", USES)
def test_code_around_a_form(use: str) -> None:
    torch.manual_seed(0)
    net, x = Net(USES[use]).eval(), torch.randn(3, 6, 8)
    quantized = fq.quantize(net, [x])
    assert sqnr_db(net(x).detach(), quantized(x)) > 25
    assert fq.explain(quantized).weighted()[0] > 0


def test_code_that_tells_them_apart_keeps_the_stock_module() -> None:
    torch.manual_seed(0)
    net, x = Net(lambda m, x: _last(m.rnn(x), type(m.rnn) is nn.LSTM)).eval(), torch.randn(3, 6, 8)
    with pytest.warns(UserWarning, match=r"left in float as they are: nn\.LSTM"):
        prepared = fq.prepare_fx(net, fq.get_default_qconfig_mapping("x86"), (x,))
    torch.testing.assert_close(prepared(x), net(x))
    assert sqnr_db(net(x).detach(), fq.convert_fx(prepared)(x)) > 25
