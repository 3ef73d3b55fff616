"""Captured containers read as the float ones do, and cannot be changed in ways that their graph would not see."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import StageError

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def make() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(64, 2)).eval()


def stages(engine: str) -> dict[str, nn.Module]:
    model = make()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (X,))
    prepared(X)
    quantized = fq.convert_fx(prepared, engine=engine)
    copies = {"copied": copy.deepcopy(quantized), "pickled": pickle.loads(pickle.dumps(quantized))}
    return {"fused": fq.fuse_fx(model), "prepared": prepared, "quantized": quantized, **copies}


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_len_index_slice_and_loop(engine: str) -> None:
    for stage, model in stages(engine).items():
        assert len(model) == 5, stage
        assert [model[index] for index in range(5)] == list(model) == list(model.children())[:5]
        assert model[-1] is model.get_submodule("4")
        part = model[1:3]
        assert type(part) is nn.Sequential and len(part) == 2
        assert model[1] in model
        with pytest.raises(IndexError):
            model[5]


def test_the_holders_of_integers_are_called_by_loops() -> None:
    model, y = stages("reference")["quantized"], X
    for layer in model:
        y = layer(y)
    torch.testing.assert_close(y, make_float(model)(X), rtol=0.1, atol=0.05)


def make_float(quantized: nn.Module) -> nn.Module:
    model = make()
    with torch.no_grad():
        for index in (0, 4):
            model[index].weight.copy_(quantized[index].weight().dequantize())
            model[index].bias.copy_(quantized[index].bias)
    return model


def test_changes_are_refused() -> None:
    model = stages("reference")["quantized"]
    for change in (
        lambda: model.append(nn.Softmax(1)),
        lambda: model.insert(0, nn.ReLU()),
        lambda: model.__setitem__(0, nn.ReLU()),
        lambda: model.__delitem__(1),
    ):
        with pytest.raises(StageError, match="new nn"):
            change()
    assert nn.Sequential(model, nn.Softmax(1))(X).shape == (2, 2)


class Words(nn.Module):
    """A container of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> nn.Module:
        return self.layers[index]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Around(nn.Module):
    """Code that runs as written, around a container that is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Words()

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        return y * len(self.words) if float(y.sum()) > 0 else y + self.words[0].out_features


def test_code_around_a_region_reads_its_length() -> None:
    model = Around().eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (X,))
    prepared(X)
    quantized = fq.convert_fx(prepared, engine="reference")
    assert len(quantized.words) == 3
    torch.testing.assert_close(quantized(X), model(X), rtol=0.2, atol=0.2)
