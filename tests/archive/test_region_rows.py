"""save and load of models of several regions, with code, standalone and custom modules of the user's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import fxquant as fq
from capture.piecewise.test_piecewise import MODELS, Branch, Functional, build, data, leaves
from capture.symbolic.test_wrap import Detector, Routed, WrappedFunction

MAPPING = fq.get_default_qconfig_mapping("x86")


def same(ours: Any, theirs: Any) -> bool:
    pairs = zip(leaves(ours), leaves(theirs), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def noise(model: nn.Module) -> nn.Module:
    """The model with other weights: the right ones are in the file."""
    other = copy.deepcopy(model)
    for tensor in (*other.parameters(), *other.buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor)
    return other


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("engine", ["onednn", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_regions_in_code(name: str, engine: Any, tmp_path: Path) -> None:
    model = build(MODELS[name])
    quantized = fq.quantize(model, data(), example_inputs=(data()[1],), engine=engine)
    path = fq.save(quantized, tmp_path / "m.safetensors")
    given = noise(model)
    before = copy.deepcopy(given.state_dict())
    loaded = fq.load(path, given.train(), engine=engine)
    for x in data():  # arms that the example did not take, too
        assert same(loaded(x), quantized(x))
    assert fq.explain(loaded) == fq.explain(quantized)
    assert set(loaded.state_dict()) == set(quantized.state_dict())
    again = fq.load(fq.save(loaded, tmp_path / "again.safetensors"), model, engine=engine)
    assert same(again(x), quantized(x))
    assert all(torch.equal(tensor, before[key]) for key, tensor in given.state_dict().items())
    with pytest.raises(fq.ArchiveError, match=rf"regions? inside Python code.*{name}.*load\(path, float_model\)"):
        fq.load(path)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_other_modes(mode: Any, tmp_path: Path) -> None:
    model = build(Functional)
    quantized = fq.quantize(model, mode=mode, example_inputs=(data()[0],))
    loaded = fq.load(fq.save(quantized, tmp_path / "m.safetensors"), noise(model))
    assert all(same(loaded(x), quantized(x)) for x in data())


@pytest.fixture
def branch(tmp_path: Path) -> Path:
    return fq.save(fq.quantize(build(Branch), data()), tmp_path / "m.safetensors")


def test_a_float_model_that_does_not_fit(branch: Path) -> None:
    def refused(model: Any, message: str) -> None:
        with pytest.raises(fq.ArchiveError, match=message):
            fq.load(branch, model)

    refused(build(Functional), r"the float model is a .*Functional, but a .*Branch was saved")
    other = build(Branch)
    other.left[1] = nn.InstanceNorm2d(8)  # inside a region, so the file has all of it
    fq.load(branch, other)
    other.left = nn.Linear(2, 2)
    refused(other, r"'left' of the float model is a torch.*Linear, but a .*Sequential was saved")
    other = build(Branch)
    other.extra = nn.Parameter(torch.zeros(2))
    refused(other, r"has a tensor 'extra', which the saved model has not")
    refused(Branch, r"float_model is a type, not a module")
    refused(fq.quantize(build(Branch), data()), r"captured already")


def test_an_altered_file_gives_nothing(branch: Path) -> None:
    whole, model = branch.read_bytes(), build(Branch)
    header = 8 + int.from_bytes(whole[:8], "little")
    places = (*range(0, header, 499), header, len(whole) - 1)
    flipped = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in places]
    cut = [whole[:size] for size in (0, 7, 8, header // 2, header, len(whole) - 1)]
    for forged in (*flipped, *cut, whole + b"x"):
        branch.write_bytes(forged)
        with pytest.raises(fq.ArchiveError, match=r"altered|not a saved model"):
            fq.load(branch, model)


class Scaled(nn.Module):
    """Tensors of all kinds outside of the regions."""

    def __init__(self, size: int = 4, depth: int = 1) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, size), nn.LayerNorm(size)
        self.scale = nn.Parameter(torch.rand(size))
        self.register_buffer("shift", torch.rand(size))
        self.register_buffer("kept_out", torch.full((size,), 2.0), persistent=False)
        self.inner = nn.ModuleList(nn.Identity() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.fc(x)) * self.scale + self.shift * self.kept_out
        return y if y.sum() > 0 else -y


def test_tensors_outside_of_the_regions(tmp_path: Path) -> None:
    model, x = Scaled().eval(), torch.randn(3, 4)
    quantized = fq.quantize(model, [x], method="piecewise")
    path = fq.save(quantized, tmp_path / "m.safetensors")
    loaded = fq.load(path, given := Scaled())
    assert torch.equal(loaded(x), quantized(x)) and not loaded.training
    assert loaded.kept_out.data_ptr() != given.kept_out.data_ptr()  # nothing is shared
    assert dict(loaded.named_parameters()).keys() == dict(quantized.named_parameters()).keys()
    assert isinstance(loaded.scale, nn.Parameter) and loaded.scale.requires_grad
    with pytest.raises(fq.ArchiveError, match=r"tensor '.*' of shape \(4,\), the float model one of shape \(5,\)"):
        fq.load(path, Scaled(5))
    with pytest.raises(fq.ArchiveError, match=r"the float model has no module 'inner.0'"):
        fq.load(path, Scaled(depth=0))


def test_parametrizations_and_shared_modules(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = parametrizations.weight_norm(nn.Linear(4, 4))
            self.b = nn.ModuleList([self.a, nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.b[1](self.b[0](self.a(x)))
            return x if x.sum() > 0 else -x

    model, x = Net().eval(), torch.randn(3, 4)
    quantized = fq.quantize(model, [x], method="piecewise")
    loaded = fq.load(fq.save(quantized, tmp_path / "m.safetensors"), Net())
    assert torch.equal(loaded(x), quantized(x)) and loaded.b[0] is loaded.a


def test_the_memory_format_of_float_weights_stays(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).eval(), torch.randn(2, 3, 8, 8)
    model = model.to(memory_format=torch.channels_last)
    mapping = fq.get_default_qconfig_mapping("x86").set_module_name("1", None)
    quantized = fq.quantize(model, [x], qconfig_mapping=mapping)
    loaded = fq.load(fq.save(quantized, tmp_path / "m.safetensors"))
    assert torch.equal(loaded(x), quantized(x))
    assert loaded.get_parameter("1.weight").is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("build", "x"),
    [(WrappedFunction, (4, 8)), (Routed, (4, 8)), (Detector, (2, 3, 16, 16))],
    ids=["function", "class", "method"],
)
def test_wrapped_code_comes_from_the_float_model(build: Any, x: tuple[int, ...], tmp_path: Path) -> None:
    model, batch = build().eval(), torch.randn(x)
    quantized = fq.quantize(model, [batch, -batch], example_inputs=(batch,))
    path = fq.save(quantized, tmp_path / "m.safetensors")
    with pytest.raises(fq.ArchiveError, match=r"the model calls .*not in the file"):
        fq.load(path)
    loaded = fq.load(path, noise(model))
    for sample in (batch, -batch):
        assert same(loaded(sample), quantized(sample))


@pytest.mark.parametrize("module", [nn.LSTM(4, 8, 2, bidirectional=True), nn.GRU(4, 8)], ids=["lstm", "gru"])
def test_recurrent_forms_need_no_float_model(module: nn.Module, tmp_path: Path) -> None:
    model, x = nn.Sequential(module).eval(), torch.randn(5, 2, 4)
    quantized = fq.quantize(model, [x])
    path = fq.save(quantized, tmp_path / "m.safetensors")
    for loaded in (fq.load(path), fq.load(path, noise(model))):
        assert same(loaded(x), quantized(x))
        assert fq.explain(loaded) == fq.explain(quantized)


@pytest.mark.parametrize("engine", ["onednn", "reference"])
def test_integer_boundaries(engine: Any, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(4, 8)
    config = {"input_quantized_idxs": [0], "output_quantized_idxs": [0]}
    quantized = fq.quantize(model, [x], prepare_custom_config=config, engine=engine)
    loaded = fq.load(fq.save(quantized, tmp_path / "m.safetensors"), engine=engine)
    grids = fq.boundary_qparams(loaded)
    assert grids == fq.boundary_qparams(quantized)
    integers = grids.input(0).quantize(x)
    assert torch.equal(loaded(integers), quantized(integers))
    with pytest.raises(fq.errors.InputError, match="takes torch"):
        loaded(x)


def test_standalone_modules(tmp_path: Path) -> None:
    middle = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model, x = nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 4)).eval(), torch.randn(4, 8)
    inner = fq.PrepareCustomConfig().set_input_quantized_indexes([0]).set_output_quantized_indexes([0])
    config = fq.PrepareCustomConfig().set_standalone_module_name("1", None, None, inner, None)
    quantized = fq.quantize(model, [x], prepare_custom_config=config)
    loaded = fq.load(fq.save(quantized, tmp_path / "m.safetensors"))
    assert torch.equal(loaded(x), quantized(x)) and fq.explain(loaded) == fq.explain(quantized)


class Doubler(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class ObservedDoubler(nn.Module):
    @classmethod
    def from_float(cls, module: nn.Module) -> ObservedDoubler:
        return cls()

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class QuantizedDoubler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(1.0))

    @classmethod
    def from_observed(cls, module: nn.Module) -> QuantizedDoubler:
        made = cls()
        made.factor.fill_(2.0)
        return made

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_custom_modules_are_put_into_the_float_model(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), Doubler()).eval(), torch.randn(2, 4)
    observed = {"float_to_observed_custom_module_class": {"static": {Doubler: ObservedDoubler}}}
    quantized_class = {"observed_to_quantized_custom_module_class": {"static": {ObservedDoubler: QuantizedDoubler}}}
    quantized = fq.quantize(model, [x], prepare_custom_config=observed, convert_custom_config=quantized_class)
    path = fq.save(quantized, tmp_path / "m.safetensors")
    with pytest.raises(fq.ArchiveError, match=r"'1' of the float model is a .*Doubler, but a .*QuantizedDoubler"):
        fq.load(path, model)
    model[1] = QuantizedDoubler()
    assert torch.equal(fq.load(path, model)(x), quantized(x))


class Reparameterized(nn.Module):
    """Branches that a trained model does not call any more."""

    def __init__(self, branching: bool) -> None:
        super().__init__()
        self.branching, self.trained = branching, True
        self.conv, self.scale = nn.Conv2d(4, 4, 3), nn.Parameter(torch.ones(4, 1, 1))
        self.idle = nn.Sequential(nn.Conv2d(4, 64, 3), nn.Conv2d(64, 64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x) * self.scale
        if self.branching and y.sum() > 1e9:
            y = -y
        return y if self.trained else self.idle(y)


@pytest.mark.parametrize("branching", [False, True])
def test_modules_that_are_never_called_take_no_floats_in_the_file(branching: bool, tmp_path: Path) -> None:
    model, x = Reparameterized(branching).eval(), torch.randn(1, 4, 8, 8)
    quantized = fq.quantize(model, [x])
    loaded = fq.load(path := fq.save(quantized, tmp_path / "model"), model)
    assert torch.equal(loaded(x), quantized(x))
    floats = sum(p.numel() * p.element_size() for p in model.parameters())
    assert path.stat().st_size < 0.4 * floats + 16000  # the header
    notes = {left.path: left.reason for left in fq.explain(quantized).left if left.path.startswith("idle")}
    assert len(notes) == 2
    assert all("never called" in why or "not reached" in why for why in notes.values())
    assert fq.explain(quantized).int8_share == 1.0


class Spare(nn.Module):
    """A layer with a parameter and a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mask_token = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(x)
        return y


def test_what_a_module_in_use_holds_besides_is_in_the_file(tmp_path: Path) -> None:
    model, x = nn.Sequential(Spare(), nn.Sequential(nn.ReLU(), Spare())).eval(), torch.randn(2, 4)
    quantized = fq.quantize(model, [x])
    loaded = fq.load(fq.save(quantized, tmp_path / "model.fq"))
    assert loaded.state_dict().keys() == quantized.state_dict().keys()
    assert torch.equal(loaded.state_dict()["1.1.mask_token"], model[1][1].mask_token)


class AroundScript(nn.Module):
    """A child that is TorchScript; `branching` makes the model Python code with regions in it."""

    def __init__(self, branching: bool) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()).eval()
        self.branching, self.first, self.last = branching, nn.Linear(4, 4), nn.Linear(4, 2)
        self.scripted = torch.jit.trace(inner, torch.randn(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.scripted(self.first(x))
        if self.branching and y.sum() > 1e9:
            y = -y
        out: torch.Tensor = self.last(y)
        return out


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("branching", [False, True])
def test_a_child_of_torchscript_gets_the_numbers_of_the_file(branching: bool, tmp_path: Path) -> None:
    model, x = AroundScript(branching).eval(), torch.randn(2, 4)
    quantized = fq.quantize(model, [x], engine="reference")
    path = fq.save(quantized, tmp_path / "model.fq")
    other = AroundScript(branching).eval()
    before = other(x)
    loaded = fq.load(path, other, engine="reference")
    assert torch.equal(loaded(x), quantized(x)) and torch.equal(other(x), before)
    assert loaded.state_dict().keys() == quantized.state_dict().keys()
    other.scripted = torch.jit.trace(nn.Sequential(nn.Linear(4, 4, bias=False)), x)
    with pytest.raises(fq.ArchiveError, match=r"'scripted.0.bias' of shape \(4,\), the float model no such tensor"):
        fq.load(path, other)


@fq.wrap()
def tuple_of(y: Tensor) -> tuple[Tensor, ...]:
    return (y, y + 1) if float(y.sum()) < 1e9 else (y,)


@fq.wrap()
def list_of(y: Tensor) -> list[Tensor]:
    return list(tuple_of(y))


class Joined(nn.Module):
    """Adds what the user's own code returned to a tuple, or a list, of its own."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind, self.fc = kind, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        first, rest = ((y * 2,), tuple_of(y)) if self.kind is tuple else ([y * 2], list_of(y))
        return first + rest[1:]  # type: ignore[operator]


@pytest.mark.parametrize("kind", [tuple, list])
def test_what_code_returns_is_added_to(kind: type, tmp_path: Path) -> None:
    model, x = Joined(kind).eval(), torch.randn(4, 8)
    quantized = fq.quantize(model, [x])
    loaded = fq.load(fq.save(quantized, tmp_path / "m.fq"), noise(model))
    assert isinstance(loaded(x), kind) and same(loaded(x), quantized(x))
