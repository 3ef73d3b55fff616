"""torch.func and torch.autocast around a converted model: one rule for all engines."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.native.apply import has_native

RUNTIMES = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]
ENGINES = ["reference", "onednn", *(["native"] if has_native() else []), *RUNTIMES]
OTHERS = ("dynamic", "weight_only")
KINDS: dict[str, Any] = {
    "static": fq.get_default_qconfig_mapping("x86"),
    "dynamic": fq.QConfigMapping().set_global(fq.default_dynamic_qconfig),
    "weight_only": fq.QConfigMapping().set_global(fq.weight_only_qconfig),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x).relu().mean((2, 3))))


@pytest.fixture(
    scope="module", params=[*((e, "static") for e in ENGINES), *((e, k) for e in ENGINES[:3] for k in OTHERS)]
)
def model(request: pytest.FixtureRequest) -> nn.Module:
    engine, kind = request.param
    torch.manual_seed(0)
    prepared = fq.prepare_fx(Net().eval(), KINDS[kind], (torch.randn(2, 3, 8, 8),))
    prepared(torch.randn(2, 3, 8, 8))
    return fq.convert_fx(prepared, engine=engine)


def test_vmap_is_one_call_after_the_other(model: nn.Module) -> None:
    x = torch.randn(3, 2, 3, 8, 8)
    with torch.no_grad():
        found, expected = torch.func.vmap(model)(x), torch.stack([model(each) for each in x])
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", ["", "head"])
def test_vmap_runs_hooks(model: nn.Module, path: str) -> None:
    x = torch.randn(3, 2, 3, 8, 8)
    handle = model.get_submodule(path).register_forward_hook(lambda module, args, output: output * 2)
    with torch.no_grad():
        found, expected = torch.func.vmap(model)(x), torch.stack([model(each) for each in x])
        handle.remove()
        assert not torch.allclose(model(x[0]), expected[0], atol=0.02)
    torch.testing.assert_close(found, expected, atol=0.04, rtol=0)


@pytest.mark.filterwarnings("error")
def test_torch_func_takes_gradients(model: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    assert torch.func.grad(lambda x: model(x).sum())(x).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(model: nn.Module, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected, of_half = model(x), model(x.to(dtype).float())
        with torch.autocast("cpu", dtype):
            assert torch.equal(model(x), expected)
            assert torch.equal(model(x.to(dtype)), of_half)  # what ops outside of it have cast


def test_autocast_stays_out_of_regions_of_code_that_runs_as_written() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x) @ torch.eye(6)  # float code, which autocast casts
            return self.last(x if float(x.sum()) > 0 else -x)

    torch.manual_seed(0)
    x = torch.randn(2, 6)
    model = fq.quantize(Outer().eval(), [x], method="piecewise")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = model(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), model(x), atol=0.1, rtol=0)


class Casting(nn.Module):
    """Asks for the dtypes of what its layers return, and mixes them with results of its own."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside, self.first, self.middle = inside, nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.norm, self.last = nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.inside or torch.is_autocast_enabled("cpu")):
            first = self.first(x)
            if first.dtype == torch.bfloat16:
                first = first * 2
            product = first @ torch.eye(6)
            product[:1] = self.middle(x)[:1]
            product.index_add_(0, torch.tensor([1]), self.middle(x)[1:2])
            normed, raised = self.norm(x), x + self.middle(x)
        last = self.last(x if float(x.sum()) < 1e9 else -x)
        return {"product": product, "list": [normed, raised], "last": last, "dtypes": [str(first.dtype)]}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inside", [True, False])
def test_under_autocast_code_finds_the_dtypes_of_the_float_model(engine: str, inside: bool) -> None:
    torch.manual_seed(0)
    model, x = Casting(inside).eval(), torch.randn(3, 6)
    quantized = fq.quantize(model, [x], engine=engine, precision="int8")
    for cast in (False, True, False):
        for given in (x, x, x[:2]):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
                expected, found = model(given), quantized(given)
            expected, found = [torch.utils._pytree.tree_leaves(each) for each in (expected, found)]
            for theirs, ours in zip(expected, found, strict=True):
                assert getattr(ours, "dtype", ours) == getattr(theirs, "dtype", theirs)
                if isinstance(theirs, Tensor):
                    torch.testing.assert_close(ours.float(), theirs.float(), atol=0.15, rtol=0)


def test_a_layer_that_the_model_itself_gives_halves_is_told_of() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y: Tensor = self.last(self.first(x))
            return y

    x = torch.randn(3, 6)
    quantized = fq.quantize(Halves().eval(), [x], engine="reference")
    assert quantized(x).dtype == torch.bfloat16
    (left,) = [each for each in fq.explain(quantized).left if each.path == "last"]
    assert "torch.autocast" in left.reason and "x.float()" in left.hint
