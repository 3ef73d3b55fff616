"""Integers divided towards zero: as torch does, and defined for all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.archive.whole_division import divide, divide_

DTYPES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.bool]
LOWEST = {dtype: torch.iinfo(dtype).min for dtype in (torch.int32, torch.int64)}


def numbers(dtype: torch.dtype, seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-100, 100, (2000,), generator=made)
    return (drawn.abs() if dtype is torch.uint8 else drawn).to(dtype)


def tried(call: Callable[..., Tensor], *args: object) -> tuple[torch.dtype, list[str]] | str:
    try:
        found = call(*args, rounding_mode="trunc")
    except RuntimeError as error:
        return str(error)
    return found.dtype, [str(each) for each in found.tolist()]


@pytest.mark.parametrize("other", [*DTYPES, 7, -7, -1, 0, 2.5, True], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_what_torch_does(dtype: torch.dtype, other: object) -> None:
    x, y = numbers(dtype, 0), numbers(other, 1) if isinstance(other, torch.dtype) else other
    if isinstance(y, Tensor) and not y.is_floating_point():
        y[y == 0] = 1
    assert tried(divide, x, y) == tried(torch.div, x, y)
    assert tried(divide_, x.clone(), y) == tried(Tensor.div_, x.clone(), y)


@pytest.mark.parametrize("dtype", LOWEST, ids=str)
def test_lowest_by_minus_one_is_lowest_and_zero_an_error(dtype: torch.dtype) -> None:
    x = torch.full((40,), LOWEST[dtype], dtype=dtype)
    for y in (torch.full((40,), -1, dtype=dtype), -1):
        assert torch.equal(divide(x, y), x) and torch.equal(divide_(x.clone(), y), x)
    for zero in (torch.zeros(40, dtype=dtype), 0):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(x, zero)


class Divides(nn.Module):
    """Rows of a table, by whole numbers that are divided in one of the ways there are."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.rows, self.out = how, nn.Embedding(64, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(self.rows(self.how(x, y) + 30))


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "method": lambda x, y: x.div(y, rounding_mode="trunc"),
    "by name": lambda x, y: torch.div(x, other=y, rounding_mode="trunc"),
    "number": lambda x, y: torch.div(x, -1, rounding_mode="trunc"),
    "in place": lambda x, y: (x + 0).div_(y, rounding_mode="trunc"),
    "divide": lambda x, y: torch.divide(x, y, rounding_mode="trunc"),
}


@pytest.mark.parametrize("method", ["symbolic", "export"])
@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_models_that_divide_are_saved_and_loaded(
    how: Callable[[Tensor, Tensor], Tensor], method: str, tmp_path: Path
) -> None:
    x, y = torch.arange(-12, 12).reshape(4, 6), torch.tensor([3, -3, 1, -1, 7, -7])
    prepared = fq.prepare_fx(Divides(how).eval(), fq.get_default_qconfig_mapping("x86"), (x, y), method=method)
    prepared(x, y)
    model = fq.convert_fx(prepared, engine="reference")
    fq.save(model, tmp_path / "model.fq")
    loaded = fq.load(tmp_path / "model.fq", engine="reference")
    for given in ((x, y), (x * 2, y + 100), (x, y.flip(0))):
        assert torch.equal(loaded(*given), model(*given))
    fq.save(loaded, tmp_path / "again.fq")
    assert (tmp_path / "again.fq").read_bytes() == (tmp_path / "model.fq").read_bytes()
