"""Calls like earlier ones are answered at once, and every change is seen in the call that follows it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region, lowering_of
from fxquant.numerics.affine import sqnr_db

pytest.importorskip("llvmlite")

from fxquant.engines.native import again, row_shot, shot, unchanged
from fxquant.engines.native.runner import NativeRunner


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(20, 20, 3, stride=2, groups=20)
        self.drop, self.act, self.head = nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(20, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.drop(self.act(self.a(x)))).relu())


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    prepared = fq.prepare_fx(Net().eval(), fq.get_default_qconfig_mapping("x86"), (torch.randn(1, 3, 16, 16),))
    prepared(torch.randn(4, 3, 16, 16))
    return fq.convert_fx(prepared, engine="native"), fq.convert_fx(prepared, engine="reference")


@pytest.fixture
def native(pair: tuple[nn.Module, nn.Module]) -> nn.Module:
    return copy.deepcopy(pair[0])


@pytest.fixture
def reference(pair: tuple[nn.Module, nn.Module]) -> nn.Module:
    return copy.deepcopy(pair[1])


@pytest.fixture
def shots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches of calls that were answered at once."""
    seen: list[int] = []
    shoot = shot.Shot.__call__

    def count(self: shot.Shot, inputs: Any) -> Any:
        seen.append(len(inputs[0]))
        return shoot(self, inputs)

    monkeypatch.setattr(shot.Shot, "__call__", count)
    return seen


@pytest.fixture(params=[True, False], ids=["tables that count", "tables that do not"])
def tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of Python with the number that each write changes, where there is one, and without."""
    if not request.param:
        monkeypatch.setattr(unchanged, "_says_writes", lambda: None)


def warm(model: nn.Module, x: Tensor, shots: list[int]) -> Tensor:
    with torch.no_grad():
        for _ in range(3):
            model(x)
        shots.clear()
        found: Tensor = model(x)
    assert shots, "the call is not answered at once"
    shots.clear()
    return found


def scale_weights(model: nn.Module) -> None:
    model.head.weight_scale.mul_(2)


def write_to_data(model: nn.Module) -> None:
    grids(model)[-1].scale.data.mul_(2)


def put_data(model: nn.Module) -> None:
    model.head.weight_scale.data = model.head.weight_scale * 2


def put_parameter(model: nn.Module) -> None:
    model.head.weight_scale = nn.Parameter(model.head.weight_scale * 2, requires_grad=False)


def put_grid(model: nn.Module) -> None:
    grid = grids(model)[-1]
    grid.scale = grid.scale * 2


def swap(model: nn.Module) -> None:
    grid = grids(model)[-1]
    torch.utils.swap_tensors(grid.scale, grid.scale * 2)


def put_module(model: nn.Module) -> None:
    model.act = nn.Tanh()


def doubled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: 2 * each if name.endswith("head.weight_scale") else each for name, each in state.items()}


def load(model: nn.Module) -> None:
    state = {
        name: 2 * each if name.endswith("head.weight_scale") else each for name, each in model.state_dict().items()
    }
    model.load_state_dict(state)


def assign(model: nn.Module) -> None:
    state = {
        name: 2 * each if name.endswith("head.weight_scale") else each for name, each in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)


def hook(model: nn.Module) -> None:
    model.head.register_forward_hook(lambda module, args, output: output * 2)


def put_forward(model: nn.Module) -> None:
    model.forward = lambda x: x.flatten(1)


def grids(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "Grid"]


CHANGES = (
    *(scale_weights, write_to_data, put_data, put_parameter, put_grid, swap, put_module, load, assign, hook),
    put_forward,
)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_seen(
    native: nn.Module, reference: nn.Module, shots: list[int], change: Callable[[nn.Module], None]
) -> None:
    x = torch.randn(2, 3, 16, 16)
    before = warm(native, x, shots)
    with torch.no_grad():
        change(native)
        change(reference)
        for _ in range(4):
            after = native(x)
            assert sqnr_db(reference(x), after) > 20
    assert not torch.equal(before, after)


@pytest.mark.usefixtures("tables")
def test_the_look_holds_and_stops_to(native: nn.Module, shots: list[int]) -> None:
    x = torch.randn(2, 3, 16, 16)
    warm(native, x, shots)
    assert isinstance(native, Region)
    runner = lowering_of(native).runner
    assert isinstance(runner, NativeRunner)
    look = runner.again._unchanged
    assert look is not None and look()
    held, tables = grids(native)[0].scale, (grids(native)[0]._buffers, native.head._buffers)
    other, bias = held + 1, tables[1]["bias"]
    changes: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: held.data.mul_(2), lambda: held.data.div_(2)),
        (lambda: tables[0].update(scale=other), lambda: tables[0].update(scale=held)),
        (lambda: tables[1].pop("bias"), lambda: tables[1].update(bias=bias)),
    ]
    for do, undo in changes:
        do()
        assert not look()
        undo()
        assert look()
    # what nothing depends on: seen, looked at once, and no reason to miss what follows
    for _ in range(2):
        tables[1]["other"] = bias
        assert look() and look()
        tables[1]["bias"] = other
        assert not look() and not look()
        tables[1].update(bias=bias)
        del tables[1]["other"]
        assert look()
    native.head.weight_scale.add_(0)
    assert not look()


def test_modes_are_seen(native: nn.Module, shots: list[int]) -> None:
    x = torch.randn(2, 3, 16, 16)
    expected = warm(native, x, shots)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(native(x), expected)
    shots.clear()
    native(x.clone().requires_grad_())
    with torch.no_grad(), torch.overrides.BaseTorchFunctionMode():
        native(x)
    assert not shots
    native.train()
    native(x)
    assert not shots


def test_signed_grids_see_nan(shots: list[int]) -> None:
    class Signed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x)

    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    prepared = fq.prepare_fx(Signed().eval(), fq.get_default_qconfig_mapping("onednn"), (x,))
    prepared(x)
    model, plain = (fq.convert_fx(prepared, engine=name) for name in ("native", "reference"))
    warm(model, x, shots)
    x[0, 0, 0, 0] = float("nan")
    assert sqnr_db(plain(x).detach(), model(x).detach()) > 20


class Optional(nn.Module):
    """Arguments that are left out, given by name, or no tensors; an input goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor, factor: Tensor | None = None, twice: bool = False) -> dict[str, Tensor]:
        y = self.a(x).relu()
        y = self.b(y if factor is None else y * factor)
        return {"y": y + y if twice else y, "x": x}


def native_and_reference(model: nn.Module, example: dict[str, Any]) -> list[nn.Module]:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), example_kwargs=example)
    prepared(**example)
    return [fq.convert_fx(prepared, engine=engine) for engine in ("native", "reference")]


def test_calls_by_name_and_with_defaults(shots: list[int]) -> None:
    x, factor = torch.randn(2, 5, 8), torch.rand(2, 5, 1)
    for example in ({"x": x}, {"x": x, "factor": factor}, {"factor": factor, "twice": True, "x": x}):
        model, plain = native_and_reference(Optional(), example)
        with torch.no_grad():
            for _ in range(3):
                model(**example)
            shots.clear()
            given = {name: torch.rand_like(value) if name != "twice" else value for name, value in example.items()}
            found, expected = model(**given), plain(**given)
        assert shots and found["x"] is given["x"]
        assert sqnr_db(expected["y"], found["y"]) > 40


def test_other_values_of_arguments_are_seen(shots: list[int]) -> None:
    x = torch.randn(2, 5, 8)
    model = fq.quantize(Optional().eval(), [{"x": x, "twice": False}], engine="native")
    with torch.no_grad():
        for _ in range(4):
            model(x, twice=False)
        assert shots
        with pytest.raises(fq.InputError, match="twice"):
            model(x, twice=True)
        with pytest.raises(fq.InputError, match="factor"):
            model(x, x[..., :1], twice=False)


def test_equal_tensors_are_told_apart(shots: list[int]) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.a(x) - self.b(y)

    x, y = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    model, plain = native_and_reference(Sum(), {"x": x, "y": y})
    with torch.no_grad():
        for _ in range(4):
            model(y=x, x=x)
        assert shots
        assert sqnr_db(plain(x, y), model(y=y, x=x)) > 40
        assert sqnr_db(plain(y, x), model(y, x)) > 40


def test_rows_are_taken_together_at_once() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(96, 200), nn.Linear(200, 40)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            z = self.a(x + y).relu()
            return self.b(z), {"z": z}

    model, plain = native_and_reference(Rows(), {"x": torch.randn(4, 96), "y": torch.randn(4, 96)})
    assert isinstance(model, Region)
    runner = lowering_of(model).runner
    assert isinstance(runner, NativeRunner)
    with torch.no_grad():
        for batch in (2, 9, 16, 24, 60, 100, 131):
            x, y = torch.randn(batch, 96), torch.randn(batch, 96)
            first = model(x, y)
            assert sqnr_db(plain(x, y)[0], first[0]) > 40
            for _ in range(3):
                found = model(y=y, x=x)
                assert torch.equal(found[0], first[0]) and torch.equal(found[1]["z"], first[1]["z"])
            assert torch.equal(model(x.t().contiguous().t(), y)[0], first[0])
        kinds = {type(each) for each in runner.again._shots.values()}
        assert {row_shot.RowShot, shot.Shot} <= kinds  # and one for columns that lie one behind the other
        before = model(y=y, x=x)[0]
        model.b.weight_scale.mul_(2)  # type: ignore[operator, union-attr]
        model.b.bias.zero_()  # type: ignore[operator, union-attr]
        plain.b.weight_scale.mul_(2)  # type: ignore[operator, union-attr]
        plain.b.bias.zero_()  # type: ignore[operator, union-attr]
        assert sqnr_db(plain(x, y)[0], model(y=y, x=x)[0]) > 40 and not torch.equal(before, model(y=y, x=x)[0])


def test_containers_are_looked_into() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 4)

        def forward(self, pair: tuple[Tensor, Tensor], more: dict[str, Tensor]) -> Tensor:
            return self.b(self.a(pair[0]).relu() * pair[1]) + more["x"]  # type: ignore[no-any-return]

    example = {"pair": (torch.randn(2, 5, 8), torch.rand(2, 5, 1)), "more": {"x": torch.rand(2, 5, 4)}}
    model, plain = native_and_reference(Pair(), example)
    with torch.no_grad():
        for batch in (2, 2, 2, 3, 2):
            given = {
                "pair": (torch.randn(batch, 5, 8), torch.rand(batch, 5, 1)),
                "more": {"x": torch.rand(batch, 5, 4)},
            }
            assert sqnr_db(plain(**given), model(**given)) > 40
    assert isinstance(model, Region)
    runner = lowering_of(model).runner
    assert isinstance(runner, NativeRunner) and runner.again._shots
    with torch.no_grad(), pytest.raises(fq.InputError, match="more"):
        model(pair=example["pair"], more={"y": example["more"]["x"]})  # type: ignore[index]


def test_code_between_kernels_is_run_each_time() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.special.bessel_j0(self.a(x)))  # type: ignore[no-any-return]

    x = torch.randn(2, 5, 8)
    model, plain = native_and_reference(Between(), {"x": x})
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 5, 8)
            assert sqnr_db(plain(x), model(x)) > 40
    assert isinstance(model, Region)
    runner = lowering_of(model).runner
    assert isinstance(runner, NativeRunner)
    assert [type(each) for each in runner.again._shots.values()] == [shot.Rerun]


def test_many_sizes_of_calls_are_bounded(native: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "_MOST", 2)
    assert isinstance(native, Region)
    runner = lowering_of(native).runner
    assert isinstance(runner, NativeRunner)
    with torch.no_grad():
        for batch in (1, 2, 3, 4, 5, 1):
            for _ in range(3):
                assert len(native(torch.randn(batch, 3, 16, 16))) == batch
    assert len(runner.again._shots) <= 2


def test_without_the_functions_python_looks(
    native: nn.Module, shots: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "_functions", lambda: None)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = native(x)
        assert all(torch.equal(native(x), expected) for _ in range(4)) and not shots
