"""A converted model's state_dict is all of its numbers: loaded into a fresh model, it gives the same bits."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import fxquant as fq
from fxquant.engines.native.apply import has_native
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.region import lowering_of, regions
from fxquant.numerics.grid import Grid
from zoo import ZOO, build, run

NATIVE = ["native"] if has_native() else []
RUNTIMES = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def shrunk(values: Any) -> Any:
    """The same data on another scale, so that every range is another."""
    return tree_map(lambda x: x * 0.01 if isinstance(x, Tensor) and x.is_floating_point() else x, values)


def reload(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Through a file, as it is mostly done."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def check_routes(name: str, engine: Any, target: str = "x86", *, both: bool = True, **settings: Any) -> None:
    """One calibrated model's state into models that saw none, or other data."""
    model, args, kwargs = build(name)
    mapping = fq.get_default_qconfig_mapping(target)

    def prepared() -> nn.Module:
        return fq.prepare_fx(model, mapping, args, example_kwargs=kwargs, target=target)

    first = prepared()
    run(first, args, kwargs)
    trained = fq.convert_fx(first, engine=engine)
    expected, state = run(trained, args, kwargs), reload(trained.state_dict())

    waiting = fq.convert_fx(prepared(), engine=engine)
    waits = bool([m for m in waiting.modules() if isinstance(m, Grid) and m.scale.isnan()])
    if waits:
        with pytest.raises(fq.StageError, match=r"waits for .*scale.*load_state_dict"):
            run(waiting, args, kwargs)
    waiting.load_state_dict(state, **settings)
    assert same(run(waiting, args, kwargs), expected)
    assert fq.explain(waiting) == fq.explain(trained)
    assert {key: value.tolist() for key, value in waiting.state_dict().items()} == {
        key: value.tolist() for key, value in state.items()
    }
    if not both:
        return

    other = prepared()
    run(other, shrunk(args), shrunk(kwargs))
    converted = fq.convert_fx(other, engine=engine)
    run(converted, args, kwargs)
    run(converted, args, kwargs)  # a run is kept by now
    converted.load_state_dict(state)
    assert same(run(converted, args, kwargs), expected)
    assert same(run(converted, args, kwargs), expected)


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "reference"])
@pytest.mark.parametrize("name", ZOO)
def test_state_dict_into_a_fresh_model_is_bit_equal(name: str, engine: str) -> None:
    check_routes(name, engine, assign=engine == "reference")


@pytest.mark.broad
@pytest.mark.parametrize("engine", RUNTIMES)
def test_runtimes_run_what_was_loaded(engine: str) -> None:
    check_routes("plain", engine, target=engine, both=False)


@pytest.mark.skipif(not has_native(), reason="no llvmlite")
def test_native_code_is_made_again() -> None:
    check_routes("plain", "native")


class Pieces(nn.Module):
    """Two regions around code that does not trace, and one arm that the data does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.second, self.other = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x) if x.sum() < 1e9 else self.other(x)


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "reference", *NATIVE, *RUNTIMES])
def test_several_regions(engine: Any) -> None:
    torch.manual_seed(0)
    model, x = Pieces().eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    assert len(list(regions(prepared))) > 1
    waiting = fq.convert_fx(prepared, engine=engine)
    prepared(x)
    trained = fq.convert_fx(prepared, engine=engine)
    with pytest.raises(fq.StageError, match="waits for"):
        waiting(x)
    waiting.load_state_dict(trained.state_dict())
    assert same(run(waiting, (x,), {}), run(trained, (x,), {}))


def qat(model: nn.Module, x: Tensor, target: str, steps: int) -> nn.Module:
    prepared = fq.prepare_qat_fx(
        copy.deepcopy(model).train(), fq.get_default_qat_qconfig_mapping(target), (x,), target=target
    )
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        prepared(x).square().mean().backward()
        optimizer.step()
    return fq.convert_fx(prepared)


@pytest.mark.parametrize("target", ["x86", "npu"])
def test_models_trained_with_quantization(target: str) -> None:
    model, (x,), _ = build("resnet")
    trained, waiting = qat(model, x, target, 2), qat(model, x, target, 0)
    with pytest.raises(fq.StageError, match="waits for"):
        waiting(x)
    waiting.load_state_dict(reload(trained.state_dict()))
    assert same(run(waiting, (x,), {}), run(trained, (x,), {}))


def specs(bits: int = 8, weight_bits: int = 8, **weight: Any) -> fq.QConfigMapping:
    spec = fq.Spec(bits=bits, signed=False, symmetric=False, observer="minmax")
    return fq.QConfigMapping().set_global(fq.QConfig(activation=spec, weight=fq.Spec(bits=weight_bits, **weight)))


def small(mapping: Any = None, factor: float = 1.0, engine: Any = "onednn", data: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 4)).eval()
    x = torch.randn(2, 3, 8, 8)
    prepared = fq.prepare_fx(model, mapping or fq.get_default_qconfig_mapping(), (x,))
    if data:
        prepared(x * factor)
    return fq.convert_fx(prepared, engine=engine)


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("engine", ["onednn", "reference"])
def test_per_tensor_weights_and_their_zero_points(engine: Any) -> None:
    mapping = specs(symmetric=False)
    first, second = small(mapping, engine=engine), small(mapping, 0.1, engine=engine)
    for module in first.modules():
        if "weight_scale" in module._buffers:
            module.weight_scale.mul_(1.5)  # type: ignore[union-attr, operator]
    expected = copy.deepcopy(first)(X)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(X), expected)
    assert torch.equal(first(X), expected)


@pytest.mark.parametrize("engine", ["onednn", "reference"])
@pytest.mark.parametrize("how", ["in place", "assigned", "one module", "data", "data assigned", "table"])
def test_every_way_to_write_a_grid_is_seen(how: str, engine: Any) -> None:
    model = small(engine=engine)
    expected, grids = model(X), [module for module in model.modules() if isinstance(module, Grid)]
    states = [copy.deepcopy(grid.state_dict()) for grid in grids]
    for grid in grids:
        grid.scale.mul_(0.1)
    assert not torch.equal(model(X), expected)
    model(X)  # a run is kept by now
    for grid, state in zip(grids, states, strict=True):
        if how == "one module":
            grid.load_state_dict(state)
        elif how == "in place":
            grid.scale.copy_(state["scale"])
        elif how == "data":  # torch counts no write then
            grid.scale.data.copy_(state["scale"])
        elif how == "data assigned":
            grid.scale.data = state["scale"]
        elif how == "table":
            grid._buffers["scale"] = state["scale"]
        else:
            grid.scale = state["scale"]
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize("engine", ["onednn", "reference", *NATIVE])
def test_a_call_with_the_tensors_of_another_model(engine: Any) -> None:
    first, second = small(engine=engine), small(factor=0.1, engine=engine)
    expected, own = run(second, (X,), {}), run(first, (X,), {})
    with torch.no_grad():
        given = {**dict(second.named_buffers()), **dict(second.named_parameters())}
        assert torch.equal(torch.func.functional_call(first, given, (X,)), expected[0])
    assert same(run(first, (X,), {}), own)


def test_copies_have_grids_of_their_own() -> None:
    model = small()
    expected, state = model(X), small(factor=0.1).state_dict()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), clone_tree(model)):
        twin.load_state_dict(state, assign=True)
        assert not torch.equal(twin(X), expected)
        assert torch.equal(model(X), expected)
    cast = copy.deepcopy(model).double().float()
    assert all(m.scale.dtype == torch.float32 for m in cast.modules() if isinstance(m, Grid))
    assert torch.equal(cast(X), expected)


def test_part_of_a_state_leaves_the_model_waiting() -> None:
    state, waiting = small().state_dict(), small(data=False)
    name = next(key for key in state if key.endswith(".scale"))
    waiting.load_state_dict({key: value for key, value in state.items() if key != name}, strict=False)
    for _ in range(2):
        with pytest.raises(fq.StageError, match=rf"waits for {name}\. Load"):
            waiting(X)
    with pytest.raises(fq.StageError, match="waits for"):
        fq.save(waiting, "nowhere.fq")
    with pytest.raises(fq.StageError, match="waits for"):
        copy.deepcopy(waiting)(X)
    waiting.load_state_dict({name: state[name]}, strict=False)
    assert torch.equal(waiting(X), small()(X))


def test_no_data_is_an_error_where_data_was_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    with pytest.raises(fq.StageError, match="not calibrated"):
        fq.quantize(model, None, example_inputs=(torch.randn(2, 4),))
    with pytest.raises(fq.CalibrationError, match="no batches"):
        fq.quantize(model, [])
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (torch.randn(2, 4),))
    with pytest.raises(fq.StageError, match="'auto' measures"):
        fq.convert_fx(prepared, engine="auto")


WRONG = {
    "bits": (lambda state: small(specs(bits=7)).state_dict(), "integers from 0 to 127 there, this model 0 to 255"),
    "zero point": (
        lambda state: {k: v.fill_(300) if k.endswith("zero_point") else v for k, v in state.items()},
        "zero point 300 is outside",
    ),
    "scale": (lambda state: {k: -v if k.endswith(".scale") else v for k, v in state.items()}, "negative"),
    "float": (lambda state: {**state, "0.weight": state["0.weight"].float()}, "0.weight: .*float32.*int8"),
    "weight bits": (lambda state: small(specs(weight_bits=8)).state_dict(), "0.weight: .*-8 to 7"),
    "weight scale": (
        lambda state: {**state, "0.weight_scale": state["0.weight_scale"] * float("nan")},
        "0.weight_scale: .*nan",
    ),
    "prepared": (
        lambda state: fq.prepare_fx(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 4)).eval(),
            specs(),
            (X,),
        ).state_dict(),
        "not converted",
    ),
    "shape": (lambda state: {**state, "0.weight": state["0.weight"][:4]}, "size mismatch for 0.weight"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_the_state_of_another_model_is_refused(name: str, strict: bool) -> None:
    change, message = WRONG[name]
    model = small(specs(weight_bits=4 if name == "weight bits" else 8))
    state = change(copy.deepcopy(model.state_dict()))
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state, strict=strict)


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "reference"])
def test_a_compiled_model_sees_what_is_loaded(engine: Any) -> None:
    first, second = small(engine=engine), small(factor=0.1, engine=engine)
    compiled = torch.compile(second, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(X), second(X))
        second.load_state_dict(first.state_dict())
        assert torch.equal(compiled(X), first(X))
        program = torch.export.export(first, (X,))
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    assert not [name for name in read if "quantizers" in name], "exporters get constants"


def test_one_look_tells_whether_any_grid_was_written_to(tmp_path: Any) -> None:
    model = small()
    copied = copy.deepcopy(model)
    for each in (model, copied):
        each(X)
        assert len(lowering_of(each).filled._seen.arrays) == 2  # type: ignore[union-attr]
    save_file(model.state_dict(), tmp_path / "state.safetensors")  # refuses tensors that share memory
    grid = next(module for module in copied.modules() if isinstance(module, Grid))
    grid.scale.mul_(0.1)
    assert not torch.equal(copied(X), model(X))


def test_what_is_told_of_a_load_names_keys_of_state_dicts() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    prepared = fq.prepare_fx(Pieces().eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantized = nn.ModuleDict({"inside": fq.convert_fx(prepared, engine="reference")})
    state = quantized.state_dict()
    assert set(quantized.load_state_dict({}, strict=False).missing_keys) == set(state)
    with pytest.raises(RuntimeError) as told:
        quantized.load_state_dict({**state, "inside.second.bias": torch.zeros(5)})
    assert "size mismatch for inside.second.bias:" in str(told.value)
    assert ".op." not in str(told.value)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "loose"])
@pytest.mark.parametrize("stage", ["calibrated", "trained"])
def test_the_integers_of_a_converted_model_are_no_float_weights(stage: str, strict: bool) -> None:
    """torch would copy them as values; and the state of a grid is not that of a quantizer."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2, 3, 4, 4)
    if stage == "trained":
        prepared = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping("x86"), (x,))
    else:
        prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    converted = fq.convert_fx(prepared.eval(), engine="reference")
    with pytest.raises(RuntimeError, match=r"0\.weight: the state has torch.int8.*converted model: load it into"):
        prepared.load_state_dict(converted.state_dict(), strict=strict)


def test_ranges_of_a_calibrated_lstm_load_into_one_that_trains() -> None:
    """Its linears are regions by themselves, named as in the float model; their statistics are no tensors of these."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.last = nn.LSTM(8, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.lstm(x)[0])  # type: ignore[no-any-return]

    x = torch.randn(3, 2, 8)
    calibrated = fq.prepare_fx(Tagger().eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    fq.calibrate(calibrated, [x])
    trained = fq.prepare_qat_fx(Tagger().train(), fq.get_default_qat_qconfig_mapping("x86"), (x,))
    trained.load_state_dict(calibrated.state_dict())
    with torch.no_grad():
        rounded, plain = trained.eval()(x), calibrated(x)
    assert 0 < float((rounded - plain).abs().max()) < 0.05


@pytest.mark.parametrize("curve", [nn.Hardsigmoid, nn.Sigmoid, nn.Tanh])
def test_a_range_that_is_known_needs_no_statistics_to_train_on(curve: type[nn.Module]) -> None:
    """Calibration keeps nothing of such a tensor, and training has a quantizer for it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), curve(), nn.Conv2d(4, 4, 1)), torch.randn(2, 3, 4, 4)
    calibrated = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), (x,))
    fq.calibrate(calibrated, [x])
    trained = fq.prepare_qat_fx(model.train(), fq.get_default_qat_qconfig_mapping("x86"), (x,))
    trained.load_state_dict(calibrated.state_dict())
    with torch.no_grad():
        rounded, plain = trained.eval()(x), calibrated(x)
    assert 0 < float((rounded - plain).abs().max()) < 0.05
