"""`sizes="any"`: nothing of the example's sizes is fixed. And preparing without any example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import InputError, StageError
from fxquant.graph.region import Region
from zoo import conv_bn_relu

MAPPING = fq.get_default_qconfig_mapping("x86")


class Anchors(nn.Module):
    """As many steps as there are rows: a graph would have the example's."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(conv_bn_relu(3, 8), conv_bn_relu(8, 8)), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.body(x))
        anchors = torch.arange(x.shape[2] * x.shape[3]).reshape(x.shape[2], x.shape[3]).float()
        return x.flatten(2) + sum(float(index) for index in range(len(anchors)))


class CachedGrid(nn.Module):
    """A grid that is kept in a list until a picture of another size comes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.grids = nn.Sequential(conv_bn_relu(3, 8), nn.Conv2d(8, 4, 1)), [torch.zeros(1, 1)]

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        if self.grids[0].shape != x.shape[2:]:
            self.grids[0] = torch.arange(x.shape[2] * x.shape[3]).reshape(x.shape[2], x.shape[3]).float()
        return x + self.grids[0]


class Pictures(nn.Module):
    """A list of pictures of any number; `Resize` is named as non-traceable."""

    class Resize(nn.Module):
        def forward(self, pictures: list[Tensor]) -> Tensor:
            return torch.stack([p[:, :8, :8] if float(p.sum()) > 1e9 else p for p in pictures])

    def __init__(self) -> None:
        super().__init__()
        self.resize, self.body = self.Resize(), nn.Sequential(conv_bn_relu(3, 8), nn.Conv2d(8, 4, 1))

    def forward(self, pictures: list[Tensor]) -> list[tuple[Tensor, int]]:
        sizes = [picture.shape[-1] for picture in pictures]
        return list(zip(self.body(self.resize(pictures)), sizes, strict=True))


@pytest.mark.broad
@pytest.mark.parametrize("how", [{"sizes": "any"}, {"method": "piecewise"}])
@pytest.mark.parametrize("cls", [Anchors, CachedGrid])
def test_a_model_captured_at_one_size_runs_at_others(cls: type[nn.Module], how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = cls().eval()
    quantized = fq.quantize(model, [torch.randn(2, 3, 8, 8)], **how)
    assert fq.explain(quantized).int8_share == 1.0
    for size in (8, 12, 16):
        x = torch.randn(2, 3, size, size)
        assert torch.allclose(quantized(x), model(x), atol=0.2)


def test_the_hint_of_the_error_works() -> None:
    model = Anchors().eval()
    x = torch.randn(2, 3, 12, 12)
    with pytest.raises(InputError, match="sizes='any'"):
        fq.quantize(model, [torch.randn(2, 3, 8, 8)], method="symbolic")(x)
    assert fq.quantize(model, [torch.randn(2, 3, 8, 8)], sizes="any")(x).shape == (2, 4, 144)


@pytest.mark.parametrize("sizes", ["any", "example"])
def test_a_list_of_pictures_of_any_length(sizes: Any) -> None:
    torch.manual_seed(0)
    custom = {"non_traceable_module_class": [Pictures.Resize]}
    model = Pictures().eval()
    example = [torch.randn(3, 8, 8) for _ in range(2)]
    quantized = fq.quantize(model, [(example,)], example_inputs=(example,), prepare_custom_config=custom, sizes=sizes)
    assert fq.explain(quantized).int8_share == 1.0
    for count in (1, 2, 5):
        pictures = [torch.randn(3, 8, 8) for _ in range(count)]
        assert len(quantized(pictures)) == count


def test_without_an_example_the_first_call_is_the_example() -> None:
    torch.manual_seed(0)
    model = Anchors().eval()
    x, labels = torch.randn(2, 3, 8, 8), torch.zeros(2)
    known = fq.convert_fx(fq.calibrate(fq.prepare_fx(model, MAPPING, (x,)), [x]))
    for feed in (lambda m: m(x), lambda m: fq.calibrate(m, [(x, labels)])):
        prepared = fq.prepare_fx(model, {"": fq.get_default_qconfig("x86")})
        assert isinstance(prepared, Anchors)
        assert list(prepared.state_dict()) == list(model.state_dict())
        with torch.no_grad():
            feed(prepared)
        assert isinstance(prepared, Region)
        assert torch.equal(fq.convert_fx(prepared)(x), known(x))
    assert type(model) is Anchors


def test_training_without_an_example_keeps_the_parameters_that_an_optimizer_has() -> None:
    prepared = fq.prepare_qat_fx(Anchors().train(), fq.get_default_qat_qconfig_mapping("x86"))
    optimizer = torch.optim.SGD(prepared.parameters(), 0.1)
    before = [parameter.detach().clone() for parameter in prepared.parameters()]
    prepared(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    after = list(prepared.parameters())
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert fq.convert_fx(prepared)(torch.randn(2, 3, 8, 8)).shape == (2, 4, 64)


@pytest.mark.parametrize("engine", ["onednn", "reference"])
def test_a_state_dict_into_a_model_that_saw_no_example(engine: Any) -> None:
    """The static tutorial's way to load: prepare without inputs, convert, load_state_dict."""
    torch.manual_seed(0)
    model, x, qconfig = Anchors().eval(), torch.randn(2, 3, 8, 8), {"": fq.get_default_qconfig("x86")}
    known = fq.convert_fx(fq.calibrate(fq.prepare_fx(model, qconfig), [x]), engine=engine)
    waits = fq.convert_fx(fq.prepare_fx(model, qconfig), engine=engine)
    with pytest.raises(StageError, match="without example inputs"):
        waits.state_dict()
    waits.load_state_dict(known.state_dict())
    assert list(waits.state_dict()) == list(known.state_dict())
    assert torch.equal(waits(x), known(x))
    assert isinstance(waits, Region)
    never = fq.convert_fx(fq.prepare_fx(model, qconfig), engine=engine)
    with pytest.raises(StageError, match="load_state_dict"):
        never(x)
    never.load_state_dict(known.state_dict())
    assert torch.equal(never(x), known(x))
    wrong = fq.convert_fx(fq.prepare_fx(model, qconfig), engine=engine)
    wrong.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="load"):
        wrong(x)
    ranges = fq.convert_fx(fq.prepare_fx(model, {"": fq.default_dynamic_qconfig}), engine=engine)
    assert ranges(x).shape == model(x).shape  # these need no data


def test_the_graph_of_a_model_that_waits() -> None:
    prepared = fq.prepare_fx(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), MAPPING)
    assert [node.op for node in prepared.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]


@pytest.mark.parametrize("call", [fq.freeze, fq.explain])
def test_what_needs_a_captured_model_says_so(call: Any) -> None:
    prepared = fq.prepare_fx(Anchors().eval(), MAPPING)
    with pytest.raises(StageError, match="without example inputs"):
        call(prepared)
    with pytest.raises(Exception, match="forward"):
        prepared("no", "picture", "at all")
    prepared(torch.randn(2, 3, 8, 8))
    call(prepared)
