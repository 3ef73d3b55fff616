"""torch.jit.trace and torch.jit.script of a converted model: the same bits.

After saving and loading too, and at other batch sizes.
"""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq
from fxquant.engines.native.apply import has_native
from fxquant.graph.region import engine_of, regions
from zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
MODELS = ("plain", "resnet", "squeeze_excite", "functional_mlp", "vision_transformer", "unet", "activations", "tied_lm")


def traced(model: nn.Module, args: tuple[Any, ...]) -> Any:
    buffer = io.BytesIO()
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(model, args), buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def same(left: Any, right: Any) -> bool:
    pairs = zip(tree_leaves(left), tree_leaves(right), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_trace_gives_the_same(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    model, args = ZOO[name].build().eval(), ZOO[name].inputs()
    quantized = fq.quantize(model, [args], mode=mode, example_inputs=args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", torch.jit.TracerWarning)  # our own code gives the user none to read
        loaded = traced(quantized, args)
    assert same(loaded(*args), quantized(*args))
    twice = tuple(torch.cat([x, x.flip(0)]) if isinstance(x, Tensor) else x for x in args)
    assert same(loaded(*twice), quantized(*twice))
    other = tuple(x * 3 if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)
    assert same(loaded(*other), quantized(*other))


@torch.no_grad()
def test_a_copy_that_was_never_called_is_traced_the_same_twice() -> None:
    """What a first call reads of grids per channel is no part of a trace, which torch makes twice to compare."""
    spread = nn.Conv2d(3, 8, 3)
    spread.weight *= torch.logspace(-3, 1, 8).view(8, 1, 1, 1)  # so that the depthwise one gets a grid per channel
    model = nn.Sequential(spread, nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(2, 3, 10, 10)
    quantized = fq.quantize(model, [x], engine="onednn", precision="int8")
    assert any(buffer.numel() == 8 for name, buffer in quantized.named_buffers() if name.endswith(".zero_point"))
    found = torch.jit.trace(deepcopy(quantized), x)
    assert torch.equal(found(x), quantized(x))


class Pieces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x) if float(x.sum()) < 1e9 else x  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_several_regions_are_traced() -> None:
    model, x = Pieces().eval(), torch.randn(4, 8)
    quantized = fq.quantize(model, [x])
    with torch.no_grad():
        assert same(traced(quantized, (x,))(x), quantized(x))


def test_a_trace_needs_no_fxquant(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x])
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(quantized, x), tmp_path / "model.pt")
        torch.save((x, quantized(x)), tmp_path / "pair.pt")
    code = (
        "import sys, torch; x, y = torch.load(sys.argv[2]); assert torch.equal(torch.jit.load(sys.argv[1])(x), y); "
        "assert 'fxquant' not in sys.modules"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "model.pt"), str(tmp_path / "pair.pt")]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def scripted(model: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_script_gives_the_same(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    model, args = ZOO[name].build().eval(), ZOO[name].inputs()
    quantized = fq.quantize(model, [args], mode=mode, example_inputs=args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = scripted(quantized)
    assert same(loaded(*args), quantized(*args))
    twice = tuple(torch.cat([x, x.flip(0)]) if isinstance(x, Tensor) else x for x in args)
    assert same(loaded(*twice), quantized(*twice))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        weights = self.first(x).masked_fill(keep == 0, -torch.inf).softmax(-1)
        return self.last(weights)  # type: ignore[no-any-return]


@torch.no_grad()
@pytest.mark.parametrize("how", ["trace", "script"])
def test_a_row_that_is_masked_as_a_whole_is_nan_in_a_dynamic_trace(how: str) -> None:
    args = torch.randn(4, 8), torch.ones(4, 8, dtype=torch.int64)
    quantized = fq.quantize(Masked().eval(), mode="dynamic", example_inputs=args, engine="onednn")
    loaded = traced(quantized, args) if how == "trace" else scripted(quantized)
    assert same(loaded(*args), quantized(*args))
    nothing = args[0], torch.zeros_like(args[1])
    assert loaded(*nothing).isnan().all() and quantized(*nothing).isnan().all()


@torch.no_grad()
def test_a_script_takes_the_tensors_of_the_example_by_their_names() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x: Tensor, y: Tensor, double: bool = False) -> Tensor:
            return self.fc(x + y) * (2 if double else 1)  # type: ignore[no-any-return]

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    quantized = fq.quantize(Two().eval(), [(x, y)])
    assert torch.equal(scripted(quantized)(y=y, x=x), quantized(x, y))


def test_scripting_names_what_works() -> None:
    """What cannot be scripted: graphs inside Python, which torch would replace in the model itself; no tensors."""
    x = torch.randn(4, 8)
    quantized = fq.quantize(Pieces().eval(), [x])
    what_works = r"torch\.jit\.trace.*fxquant\.save.*torch\.export"
    with pytest.raises(fq.StageError, match=rf"'first'.*{what_works}"):
        torch.jit.script(quantized)
    assert torch.equal(quantized(x), quantized(x))
    example = ZOO["tuple_to_tuple"].inputs()
    quantized = fq.quantize(ZOO["tuple_to_tuple"].build().eval(), [example], example_inputs=example)
    with pytest.raises(fq.StageError, match=rf"'pair' is no tensor.*{what_works}"):
        torch.jit.script(quantized)


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0])  # type: ignore[no-any-return]


def written_down(model: nn.Module, x: Tensor, how: str) -> Any:
    if how == "trace":
        return traced(model, (x,))
    with torch.no_grad():
        return torch.export.export(model, (x,), strict=how == "strict").module()


@pytest.mark.broad
@pytest.mark.skipif(not has_native(), reason="no native code here")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["trace", "export", "strict"])
@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(8, 8), nn.ReLU()), Steps()], ids=["one", "steps"])
def test_machine_code_gives_way_to_what_is_written_down(model: nn.Module, how: str) -> None:
    x = torch.randn(4, 5, 8)
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping(), (x,))
    quantized = fq.convert_fx(fq.calibrate(prepared, [x]), engine="native")
    copy = deepcopy(quantized)
    with pytest.warns(UserWarning, match="trace a copy.deepcopy"):
        written = written_down(quantized, x, how)
    with torch.no_grad():
        assert same(written(x), quantized(x))
    engines = [{engine_of(region) for _, region in regions(each)} for each in (quantized, copy)]
    assert engines == [{"onednn"}, {"native"}]
    assert "wrote down" in " ".join(str(fq.explain(quantized)).split())
    fresh = fq.convert_fx(fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,)), engine="native")
    fresh.load_state_dict(quantized.state_dict())
    with torch.no_grad():
        assert same(fresh(x), quantized(x))


@torch.no_grad()
@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
@pytest.mark.parametrize("place", ["", "0", "1"], ids=["model", "conv", "relu"])
def test_hooks_are_in_the_trace(engine: str, place: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()
    x = torch.randn(2, 3, 6, 6)
    quantized = fq.quantize(model, [x], engine=engine)
    before = quantized(x)
    quantized.get_submodule(place).register_forward_hook(lambda module, args, output: output * 2)
    loaded = traced(quantized, (x,))
    assert same(loaded(x), quantized(x))
    assert not torch.allclose(loaded(x), before)
