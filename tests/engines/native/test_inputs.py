"""Arguments in containers, and tensors that are the same for all samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native.calls import key_of, unfit
from fxquant.engines.native.program import Program
from fxquant.engines.native.runner import NativeRunner


class Turned(nn.Module):
    """A product of queries and keys that are turned by angles, as decoders of text do."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor, angles: Any, shift: Any = None) -> Tensor:
        cos, sin = (angles["cos"], angles["sin"]) if isinstance(angles, dict) else angles
        q, k = (f(x).view(x.shape[0], -1, 2, 8).transpose(1, 2) for f in (self.q, self.k))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        made = (q * cos + k * sin).transpose(1, 2).reshape(x.shape[0], -1, 16)
        return self.out(made if shift is None else made + shift)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return self.b((self.a(x) + shift).relu())


def angles(batch: int, length: int) -> tuple[Tensor, Tensor]:
    found = torch.randn(batch, length, 8)
    return found.cos(), found.sin()


def runner_of(model: nn.Module) -> NativeRunner:
    assert isinstance(model, Region)
    found = lowering_of(model).runner
    assert isinstance(found, NativeRunner)
    return found


def converted(model: nn.Module, *example: Any, cache: str | None = None) -> tuple[nn.Module, nn.Module]:
    """Return a model on the native engine, and the reference."""
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), example)
    prepared(*example)
    return (
        fq.convert_fx(prepared, engine=fq.Native(cache=cache)),
        fq.convert_fx(prepared, engine="reference"),
    )


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches of native calls."""
    seen: list[int] = []
    run = Program.run

    def count(self: Program, inputs: Any, batch: int, *into: Any) -> Any:
        seen.append(batch)
        return run(self, inputs, batch, *into)

    monkeypatch.setattr(Program, "run", count)
    return seen


FORMS: dict[str, Callable[[tuple[Tensor, Tensor]], Any]] = {
    "tuple": lambda pair: pair,
    "list": list,
    "dict": lambda pair: {"cos": pair[0], "sin": pair[1]},
}


@pytest.mark.parametrize("form", FORMS)
def test_containers_of_tensors_run_natively(form: str, batches: list[int]) -> None:
    torch.manual_seed(0)
    make = FORMS[form]
    native, reference = converted(Turned(), torch.randn(1, 6, 16), make(angles(1, 6)))
    for batch, shared, length in ((1, 1, 6), (4, 1, 6), (4, 4, 6), (3, 1, 6), (1, 1, 6), (2, 1, 9), (5, 5, 9)):
        x, pair = torch.randn(batch, length, 16), angles(shared, length)
        with torch.no_grad():
            expected, found = reference(x, make(pair)), [native(x, make(pair)) for _ in range(3)]
        assert batches[-3:] == [batch] * 3, "not in native code"
        assert all(torch.equal(each, found[0]) for each in found)
        assert sqnr_db(expected, found[0]) > 30
    assert len(runner_of(native).programs) == 4
    assert not runner_of(native).told


def test_other_structures_end_as_in_the_reference() -> None:
    native, reference = converted(Turned(), torch.randn(1, 6, 16), angles(1, 6))
    cos, sin = angles(2, 6)
    x = torch.randn(2, 6, 16)
    for given in ((cos,), (cos, sin, sin), [cos, sin], {"cos": cos, "sin": sin}, ((cos, sin),), cos):
        errors = []
        for model in (native, reference):
            with torch.no_grad(), pytest.raises((fq.FxQuantError, TypeError, ValueError)) as error:
                model(x, given)
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1]
    with torch.no_grad():
        assert sqnr_db(reference(x, (cos, sin)), native(x, (cos, sin))) > 30


def test_structures_have_keys_of_their_own() -> None:
    x = torch.randn(4, 8)
    one = torch.randn(1, 8)
    forms = ([x, x], [(x, x)], [[x, x]], [{"a": x, "b": x}], [{"b": x, "a": x}], [(x,), x], [x, (x,)], [(x, (x,))])
    shared = ([x, one], [one, x], [x, one[None]], [torch.randn(4, 1, 8), one])
    keys = [key_of(form) for form in (*forms, *shared)]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_is_the_same_for_all_samples(batches: list[int]) -> None:
    torch.manual_seed(0)
    native, reference = converted(Plain(), torch.randn(2, 7, 16), torch.randn(2, 7, 32))
    for batch, shape in (
        (1, (1, 7, 32)),
        (4, (1, 7, 32)),
        (4, (4, 7, 32)),
        (4, (1, 1, 32)),
        (6, (1, 7, 32)),
        (4, (1, 32)),
    ):
        x, shift = torch.randn(batch, 7, 16), torch.randn(shape)
        with torch.no_grad():
            found = [native(x, shift) for _ in range(3)]
            assert sqnr_db(reference(x, shift), found[0]) > 30
        assert all(torch.equal(each, found[0]) for each in found)
    assert len(runner_of(native).programs) == 4
    assert {1, 4} <= set(batches)


@pytest.mark.parametrize("batch", [4, 40])
def test_rows_that_share_one_are_not_taken_together(batch: int) -> None:
    torch.manual_seed(0)
    native, reference = converted(Plain(), torch.randn(8, 16), torch.randn(8, 32))
    x, shift = torch.randn(batch, 16), torch.randn(1, 32)
    with torch.no_grad():
        assert sqnr_db(reference(x, shift), native(x, shift)) > 30


def test_a_program_from_disk_takes_what_is_the_same(tmp_path: Path, batches: list[int]) -> None:
    torch.manual_seed(0)
    model, example = Plain(), (torch.randn(4, 7, 16), torch.randn(1, 7, 32))
    found = []
    for _ in range(2):
        native, reference = converted(model, *example, cache=str(tmp_path))
        with torch.no_grad():
            found.append(native(*example))
            assert sqnr_db(reference(*example), found[-1]) > 30
            x = torch.randn(9, 7, 16)
            assert sqnr_db(reference(x, example[1]), native(x, example[1])) > 30
    assert torch.equal(*found)
    assert runner_of(native).known


def test_gradients_of_what_is_in_containers() -> None:
    native, _ = converted(Turned(), torch.randn(1, 6, 16), angles(1, 6))
    for parameter in native.parameters():
        parameter.requires_grad_(False)
    pair = tuple(each.requires_grad_() for each in angles(1, 6))
    assert "gradients" in " ".join(_told(native, torch.randn(1, 6, 16), pair))


def _told(model: nn.Module, *args: Any) -> dict[str, str]:
    model(*args)
    return runner_of(model).told


def test_calls_without_code_are_explained() -> None:
    native, reference = converted(Plain(), torch.randn(3, 16), torch.randn(32))
    x, shift = torch.randn(3, 16), torch.randn(7, 16)[0, :].repeat(2)
    with torch.no_grad():
        assert sqnr_db(reference(x, shift), native(x, shift)) > 30
    why = "argument 'shift' has 32 in front, and argument 'x' 3"
    assert why in "".join(row.reason for row in fq.explain(native).rows)
    with pytest.raises(fq.StageError, match=why):
        fq.profile(native, x, shift)


def test_what_does_not_fit_is_named() -> None:
    names = [torch.fx.Graph().placeholder(name) for name in ("a", "b")]
    assert unfit(names, [torch.ones(2, 3), (torch.ones(()),)]).startswith("argument 'b' is no dense tensor")
    assert unfit(names, [torch.ones(2, 3), {"c": object()}]) == "argument 'b' is or holds a object"
    assert unfit(names, [torch.ones(1, 3), torch.ones(4, 3)]) == "no argument is a tensor"
    assert unfit(names, [1, None]) == "no argument is a tensor"


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 48), nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("by_query", [False, True])
def test_a_mask_that_is_the_same_for_all_samples(length: int, by_query: bool) -> None:
    torch.manual_seed(0)
    rows = length if by_query else 1
    example = torch.randn(3, length, 16), torch.randn(1, 1, rows, length)
    native, reference = converted(Masked(), *example)
    for batch, shared in ((3, 1), (4, 1), (1, 1), (4, 4)):
        x, mask = torch.randn(batch, length, 16), torch.randn(shared, 1, rows, length)
        with torch.no_grad():
            assert sqnr_db(reference(x, mask), native(x, mask)) > 30
    assert len(runner_of(native).programs) == 2
    assert not runner_of(native).outside
