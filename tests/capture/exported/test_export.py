"""Sizes: what stays free, what is checked; and what only torch.export makes of a model."""

from __future__ import annotations

import types
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from fxquant.capture import InputError, capture
from fxquant.capture.capture import Method
from fxquant.capture.exported.sizes import conditions
from fxquant.errors import CaptureError
from fxquant.graph.region import origin_of

both = pytest.mark.parametrize("method", ["symbolic", "export"])


class Shapes(nn.Module):
    """Arithmetic on sizes in its usual spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        half = x.shape[-1] // 2
        x = self.fc(x.view(b * t, c)).view(b, t, c)
        shape = (x.size(0), x.size(1), 2, half)
        x = x.view(*shape).transpose(1, 2).reshape(b, -1)
        return x.view(x.size(0), -1, half)[:, : t // 2]


@both
def test_arithmetic_on_sizes_holds_at_other_sizes(method: Method) -> None:
    model = Shapes()
    for example in (torch.randn(2, 6, 8), torch.randn(1, 6, 8)):
        region = capture(model, (example,), method=method)
        for shape in ((1, 6, 8), (5, 6, 8), (2, 10, 8)):
            x = torch.randn(shape)
            assert torch.equal(region(x), model(x))


@pytest.mark.parametrize("word", ["max", "torch.sym_max"])
def test_guards_of_both_spellings_are_read(word: str) -> None:
    program = types.SimpleNamespace(_guards_code=[f"{word}(1, L['x'].size()[1] // 2) == 4"])
    x = torch.randn(3, 8)
    found = conditions(cast(Any, program), {"x": x}, [x])
    assert found == [
        ("==", ("size", 0, 0), 3),
        ("==", ("size", 0, 1), 8),
        ("==", ("max", 1, ("//", ("size", 0, 1), 2)), 4),
    ]


class Parity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::2] if x.shape[1] % 2 == 0 else x


def test_what_export_took_for_granted_is_checked() -> None:
    region = capture(Parity(), (torch.randn(3, 6),), method="export")
    assert region(torch.randn(4, 8)).shape == (4, 4)
    with pytest.raises(InputError, match=r"x \(3, 7\): it needs .*x\.size\(1\) % 2 == 0"):
        region(torch.randn(3, 7))


def test_a_fixed_size_is_checked() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    region = capture(model, (torch.randn(2, 3, 4),), method="export")
    assert region(torch.randn(7, 3, 4)).shape == (7, 2)
    with pytest.raises(InputError, match=r"does not hold for inputs of size input \(2, 3, 5\)"):
        region(torch.randn(2, 3, 5))
    with pytest.raises(InputError, match="does not hold"):
        region(torch.randn(2, 12))


def test_sizes_that_went_together_are_checked() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (x + y).view(y.size(0), -1)

    region = capture(Adds(), (torch.randn(3, 4), torch.randn(3, 4)), method="export")
    with pytest.raises(InputError, match=r"x\.size\(0\) == y\.size\(0\)|y\.size\(0\) == x\.size\(0\)"):
        region(torch.randn(3, 4), torch.randn(2, 4))


def test_a_branch_on_a_batch_of_one_is_not_forgotten() -> None:
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[0] == 1 else x - 1

    region = capture(Single(), (torch.randn(3, 4),), method="export")
    assert region(torch.zeros(2, 4)).sum() == -8
    with pytest.raises(InputError):
        region(torch.zeros(1, 4))


def test_no_grad_inside_forward() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                a, b = self.fc(x).chunk(2, 1)
            return a * b + x[:, :2]

    model = Frozen()
    region = capture(model, (torch.randn(3, 4),), method="export")
    x = torch.randn(2, 4)
    assert torch.equal(region(x), model(x))
    assert "fc" in [node.target for node in region.graph.nodes if node.op == "call_module"]


def test_buffers_and_attributes_that_are_assigned() -> None:
    class Assigns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))
            self.scale = torch.full((1,), 2.0)  # a plain attribute

        def forward(self, x: Tensor) -> Tensor:
            self.total = self.total + 1
            return x * self.scale + self.total

    model = Assigns()
    region = capture(model, (torch.ones(2, 2),))
    assert origin_of(region).method == "export"
    assert model.total == 0
    region(torch.ones(2, 2))
    assert region(torch.ones(2, 2)).max() == 4
    assert region.total == 2


def test_multi_head_attention_is_flattened_to_linears() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    region = capture(layer, (torch.randn(2, 5, 8),), method="export")
    x = torch.randn(3, 7, 8)
    assert torch.allclose(region(x), layer(x), atol=1e-6)


class Positive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return self.out(x[x > 0].unsqueeze(1))


def test_sizes_that_depend_on_data_stay_free() -> None:
    model = Positive().eval()
    region = capture(model, (torch.randn(8, 4),), method="export")
    for _ in range(3):
        x = torch.randn(8, 4)
        assert torch.equal(region(x), model(x))


@pytest.mark.filterwarnings("error::UserWarning")
def test_trying_sizes_of_one_warns_of_nothing() -> None:
    capture(nn.Sequential(nn.InstanceNorm1d(4)).eval(), (torch.randn(2, 4, 8),), method="export")


def test_an_output_that_export_refuses_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cache:
        pass

    class Returns(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Cache]:
            return x * 2, Cache()

    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: pytest.fail("not to be called"))
    with pytest.raises(CaptureError, match="the model returns one"):
        capture(Returns(), (torch.randn(2, 4),), method="export")
