"""method="auto": from a whole trace to pieces; what the example fixes is checked at run time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture import InputError, capture
from fxquant.errors import CaptureError
from fxquant.graph.region import Region, regions
from fxquant.graph.tree import tree_of


class Body(nn.Module):
    """A linear layer before and after some code."""

    def __init__(self, code: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.code = code
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.code(self.fc(x))


def loop(x: Tensor) -> Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total + row
    return total


# code -> whether the graph holds for another batch size
BY_SIZE: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "branch": (lambda x: x + 1 if x.shape[0] > 1 else x, True),
    "dim": (lambda x: x + 1 if x.dim() == 2 and x.dtype == torch.float32 else x, True),
    "range": (lambda x: sum(x[:, i] for i in range(x.size(1))), True),
    "finfo": (lambda x: x + torch.finfo(x.dtype).eps, True),
    "star": (lambda x: x.view(*x.shape[:-1], 2, 2), True),
    "isinstance": (lambda x: x * 2 if isinstance(x, Tensor) else x, True),
    "constructors": (lambda x: x + torch.zeros(x.shape[0], 1) if len(x.shape) == 2 else x, True),
    "reshape": (lambda x: torch.reshape(x, (x.shape[0], -1)) if x.shape[1] == 4 else x, True),
    "sqrt": (lambda x: x * math.sqrt(x.shape[1]) if x.ndim > 1 else x, True),
    "device": (lambda x: x + 1 if x.device.type == "cpu" else x, True),
    "tensor": (lambda x: x * torch.tensor(x.shape[1]) if x.numel() else x, True),
    "len": (lambda x: x * len(x), False),
    "loop": (loop, False),
    "equal_shape": (lambda x: x if x.shape == (2, 4) else x + 1, False),
}


@pytest.mark.parametrize("name", BY_SIZE)
def test_code_that_asks_for_sizes_is_one_graph_with_checks(name: str) -> None:
    code, general = BY_SIZE[name]
    model = Body(code).eval()
    region = capture(model, (torch.randn(2, 4),), method="symbolic")
    x = torch.randn(2, 4)
    assert torch.allclose(region(x), model(x))
    other = torch.randn(3, 4)
    if general:
        assert torch.allclose(region(other), model(other))
    else:
        with pytest.raises(InputError, match="Capture the model again"):
            region(other)


@pytest.mark.parametrize("code", [lambda x: x + 1 if x.shape[0] > 2 else x, lambda x: x[: x.size(0) // 2]])
def test_the_other_side_of_a_decision_is_an_error_never_a_wrong_answer(code: Callable[[Tensor], Any]) -> None:
    model = Body(code).eval()
    region = capture(model, (torch.randn(2, 4),), method="symbolic")
    for n in range(1, 6):
        x = torch.randn(n, 4)
        try:
            actual = region(x)
        except InputError:
            continue
        assert torch.allclose(actual, model(x))


DATA: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x if x.sum() > 0 else -x,
    "item": lambda x: x * 2 if x.max().item() > 0.5 else x,
    "nonzero": lambda x: x * 2 if len(x[x > 0]) > 3 else x,
    "where": lambda x: x * 2 if torch.where(x > 0)[0].shape[0] > 3 else x,
    "unique": lambda x: x * 2 if torch.unique(x.sign()).numel() > 1 else x,
    "int": lambda x: x[: int(x.abs().sum()) % 3 + 1],
    "tolist": lambda x: [x[i] for i in x.argmax(1).tolist() if i < 2],
}


@pytest.mark.parametrize("name", DATA)
def test_decisions_by_value_are_never_part_of_a_graph(name: str) -> None:
    with pytest.raises(CaptureError, match=r"test_ladder\.py"):
        capture(Body(DATA[name]).eval(), (torch.randn(2, 4),), method="symbolic")


@pytest.mark.parametrize("name", DATA)
def test_what_does_not_trace_is_quantized_in_pieces(name: str) -> None:
    model = Body(DATA[name]).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    assert not isinstance(prepared, Region)
    assert tree_of(prepared).method == "piecewise"
    for _ in range(8):
        x = torch.randn(3, 4)
        torch.testing.assert_close(prepared(x), model(x))
    quantized = fq.convert_fx(prepared)
    assert quantized.state_dict()["fc.weight"].dtype == torch.int8
    assert fq.explain(quantized).int8_share == 1.0


def test_one_line_says_that_the_whole_does_not_trace_and_where(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fxquant"):
        fq.prepare_fx(Body(DATA["sum"]).eval(), fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    lines = [r.getMessage() for r in caplog.records if "FX trace of the entire model failed" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("FX trace of the entire model failed. Quantizing its traceable parts.")
    assert "test_ladder.py:" in lines[0]
    assert any("weighted ops quantized" in r.getMessage() for r in caplog.records)


def test_an_output_that_no_graph_can_hold_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Cache:
        def __init__(self, keys: Tensor) -> None:
            self.keys = keys

    model = Body(lambda x: {"y": x, "cache": [Cache(x)]}).eval()
    with caplog.at_level(logging.INFO, logger="fxquant"):
        prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    (line,) = [r.getMessage() for r in caplog.records if "FX trace of the entire model failed" in r.getMessage()]
    assert "test_ladder.py:" in line and "cannot hold a" in line and "Cache" in line
    assert isinstance(prepared(torch.randn(2, 4))["cache"][0], Cache)


def test_a_whole_trace_says_nothing_of_the_kind(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fxquant"):
        fq.prepare_fx(Body(lambda x: x * 2).eval(), fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    assert not any("failed" in record.getMessage() for record in caplog.records)


class Mixed(nn.Module):
    """Most of it traces; `gate` does not, and holds few of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
        self.gate = Body(DATA["sum"])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gate(self.layers(x)))


def test_a_few_modules_that_fail_are_calls_in_one_graph_with_regions_inside() -> None:
    model = Mixed().eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    assert [path for path, _ in regions(prepared)] == ["", "gate.fc"]
    assert any(node.target == "gate" for node in prepared.graph.nodes)
    for _ in range(8):
        x = torch.randn(3, 4)
        torch.testing.assert_close(prepared(x), model(x))
    explanation = fq.explain(fq.convert_fx(prepared))
    assert explanation.int8_share == 1.0
    assert [(left.path, left.module) for left in explanation.left] == [("gate", "Body")]


class ByRow(Body):
    """A loop over the batch, in code that traces."""

    def forward(self, x: Tensor) -> Any:
        return torch.stack([self.fc(row) for row in x])


def test_a_rung_that_holds_for_any_batch_comes_first(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ByRow(lambda x: x).eval()
    with caplog.at_level(logging.INFO, "fxquant"):
        prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    assert caplog.text.count("FX trace of the entire model holds for a batch of 2 only") == 1
    assert not capsys.readouterr().err
    for size in (1, 2, 5):
        x = torch.randn(size, 4)
        assert torch.equal(prepared(x), model(x))
    (left,) = (left for left in fq.explain(prepared).left if not left.path)
    assert "test_ladder.py" in left.where and "batch" in left.hint
    assert isinstance(capture(model, (torch.randn(2, 4),), method="symbolic"), Region)


def test_methods_by_name() -> None:
    x = torch.randn(2, 4)
    model = Body(lambda x: x * 2).eval()
    for method, kind in (("symbolic", Region), ("export", Region), ("piecewise", nn.Module)):
        captured = capture(model, (x,), method=method)  # type: ignore[arg-type]
        assert isinstance(captured, kind)
        assert torch.allclose(captured(x), model(x))
    with pytest.raises(CaptureError, match="method 'magic' is unknown"):
        capture(model, (x,), method="magic")  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="needs example inputs"):
        capture(model, None, method="piecewise")


def test_state_in_plain_attributes_is_no_graph() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.hidden: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.hidden = x if self.hidden is None else self.fc(x + self.hidden)
            return self.hidden

    model = Stateful().eval()
    x = torch.randn(2, 4)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    model.hidden = None
    for _ in range(3):
        torch.testing.assert_close(prepared(x), model(x))


def test_attributes_that_forward_only_leaves_behind_do_no_harm() -> None:
    class Leaves(Body):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.fc(x)
            return self.seen * 2

    region = capture(Leaves(lambda x: x).eval(), (torch.randn(2, 4),))
    assert isinstance(region, Region)
    assert "seen" not in region.__dict__
