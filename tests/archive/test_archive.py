"""save and load: bit-equal, self-contained, and nothing from a file is run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import fxquant as fq
from fxquant.archive import archive
from fxquant.engines.table import default_engine
from fxquant.graph.encode import encode_graph
from fxquant.graph.region import engine_of, lowering_of
from fxquant.numerics.grid import Grid
from zoo import ZOO


def outputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "reference"])
@pytest.mark.parametrize("name", ZOO)
def test_round_trip_is_bit_equal(name: str, engine: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    torch.manual_seed(0)
    model, args, kwargs = entry.build().eval(), entry.inputs(), entry.kwargs()
    quantized = fq.quantize(model, [args or kwargs], example_inputs=args, example_kwargs=kwargs, engine=engine)
    loaded = fq.load(fq.save(quantized, tmp_path / "model.safetensors"), engine=engine)
    for left, right in zip(outputs(quantized, args, kwargs), outputs(loaded, args, kwargs), strict=True):
        assert torch.equal(left, right)
    assert fq.explain(loaded) == fq.explain(quantized)
    again = fq.load(fq.save(loaded, tmp_path / "again.safetensors"), engine=engine)
    for left, right in zip(outputs(loaded, args, kwargs), outputs(again, args, kwargs), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_other_modes(mode: str, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), torch.randn(4, 32)
    quantized = fq.quantize(model, mode=mode, example_inputs=(x,))
    assert torch.equal(fq.load(fq.save(quantized, tmp_path / "m.safetensors"))(x), quantized(x))


def test_modules_with_absent_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.Conv2d(4, 8, 3), nn.LayerNorm(4, bias=False))
    x = torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model.eval(), [x])
    assert torch.equal(fq.load(fq.save(quantized, tmp_path / "m.safetensors"))(x), quantized(x))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).eval()
    return fq.save(fq.quantize(model, [torch.randn(1, 3, 8, 8)]), tmp_path / "model.safetensors")


@pytest.mark.parametrize("bools", [True, False])
def test_attention_with_a_mask(bools: bool, tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = self.first(x)
            return self.last(F.scaled_dot_product_attention(y, y, y, attn_mask=mask[:, None, :]))

    x = torch.randn(2, 5, 8)
    mask = torch.arange(5).expand(2, 5) < 4 if bools else torch.zeros(2, 5)
    quantized = fq.quantize(Masked().eval(), [(x, mask)])
    with torch.no_grad():
        assert torch.equal(fq.load(fq.save(quantized, tmp_path / "net.fq"))(x, mask), quantized(x, mask))


def test_the_file_is_small(saved: Path, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    torch.save(model.state_dict(), tmp_path / "float.pt")
    assert (
        saved.stat().st_size < 0.32 * (tmp_path / "float.pt").stat().st_size
    )  # the header weighs on a model this small


def test_user_modules_come_from_the_float_model(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.odd = nn.Linear(4, 4), Odd()

        def forward(self, x: Tensor) -> Tensor:
            return self.odd(self.fc(x))

    model, x = Net().eval(), torch.randn(2, 4)
    config = fq.PrepareCustomConfig().set_non_traceable_module_classes([Odd])
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), config)
    quantized = fq.convert_fx(fq.calibrate(prepared, [x]))
    path = fq.save(quantized, tmp_path / "m.safetensors")
    with pytest.raises(fq.ArchiveError, match=r"class .*Odd.*load\(path, float_model\)"):
        fq.load(path)
    assert torch.equal(fq.load(path, model)(x), quantized(x))


def test_truncated(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(fq.ArchiveError, match="cut short"):
        fq.load(saved)


def test_altered_tensor(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    with pytest.raises(fq.ArchiveError, match="altered"):
        fq.load(saved)


def test_foreign_files(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(fq.ArchiveError, match="not one that fxquant"):
        fq.load(tmp_path / "other.safetensors")
    torch.save(nn.Linear(2, 2), tmp_path / "pickle.pt")
    with pytest.raises(fq.ArchiveError, match=r"load it with torch"):
        fq.load(tmp_path / "pickle.pt")
    (tmp_path / "text.fq").write_text("no model, but a text")
    with pytest.raises(fq.ArchiveError, match="not a saved model"):
        fq.load(tmp_path / "text.fq")
    with pytest.raises(fq.ArchiveError, match="no file"):
        fq.load(tmp_path / "missing.safetensors")
    with pytest.raises(fq.ArchiveError, match="there is no file"):
        fq.load(tmp_path / ("x" * 300))


def test_a_file_with_more_than_the_memory_holds(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of terabytes takes a few blocks of the disk."""
    errors: list[type[Exception]] = [MemoryError, RuntimeError]
    for error in errors:

        def refuse(*args: object, error: type[Exception] = error, **kwargs: object) -> None:
            raise error("not enough memory")

        monkeypatch.setattr("fxquant.archive.archive.safe_open", refuse)
        with pytest.raises(fq.ArchiveError, match="larger than the memory"):
            fq.load(saved)


def forge(path: Path, change: Any) -> None:
    """Rewrite a file's header and give it a digest that fits."""
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    header = json.loads(metadata["fxquant"])
    change(header["modules"])
    text = json.dumps(header)
    save_file(tensors, path, {"fxquant": text, "digest": archive._digest(text, tensors)})


@pytest.mark.parametrize(
    "row",
    [
        ["call_function", "evil", "os.system", ["tuple", "true"], ["dict"], ["dict"]],
        ["call_function", "evil", "torch.load", ["tuple", "x"], ["dict"], ["dict"]],
        ["call_function", "evil", "torch.hub.load", ["tuple", "x"], ["dict"], ["dict"]],
        ["call_function", "evil", "builtins.eval", ["tuple", "1"], ["dict"], ["dict"]],
        ["call_function", "evil", "getattr", ["tuple", ["node", "input_1"], "__class__"], ["dict"], ["dict"]],
        ["call_method", "evil", "__reduce_ex__", ["tuple", ["node", "input_1"], 4], ["dict"], ["dict"]],
        ["call_function", "evil", "operator.methodcaller", ["tuple", "x"], ["dict"], ["dict"]],
        ["call_function", "evil", "torch.ops.aten.save.default", ["tuple", 1, "x"], ["dict"], ["dict"]],
        ["call_function", "evil", "torch.ops.aten.from_file.default", ["tuple", "x"], ["dict"], ["dict"]],
        # twins of tensor ops on numbers and lists: the first ends the process, the second fills the memory
        ["call_function", "evil", "torch.ops.aten.remainder.int", ["tuple", 0, 0], ["dict"], ["dict"]],
        ["call_function", "evil", "torch.ops.aten.mul.left_t", ["tuple", ["list", 1], 2**40], ["dict"], ["dict"]],
        # fx writes these words into the source of forward as they stand
        ["placeholder", "evil", "x=print('run')", ["tuple"], ["dict"], ["dict"]],
        ["get_attr", "evil", 'x"), print("run"), getattr(self, "y', ["tuple"], ["dict"], ["dict"]],
        ["call_module", "evil", 'x"), print("run"), getattr(self, "y', ["tuple"], ["dict"], ["dict"]],
        [
            *("call_function", "evil", "torch.relu", ["tuple", ["node", "input_1"]]),
            *(["dict", ["x=print('run'), y", 1]], ["dict"]),
        ],
        ["import os", "evil", "x", ["tuple"], ["dict"], ["dict"]],
        [
            *("call_function", "evil", "fxquant.capture.guards.apply_in_place"),
            *(["tuple", ["node", "input_1"], "__reduce_ex__", 4], ["dict"], ["dict"]),
        ],
        [
            *("call_function", "evil", "fxquant.capture.guards.pack"),
            *(["tuple", ["list"], '[1, {"type": "collections.defaultdict"}]'], ["dict"], ["dict"]),
        ],
    ],
    ids=lambda row: f"{row[0]} {row[2]}",
)
def test_forged_calls_are_refused(saved: Path, row: list[Any]) -> None:
    forge(saved, lambda modules: modules[""]["graph"].insert(1, row))
    with pytest.raises(fq.ArchiveError, match="the graph"):
        fq.load(saved)


def test_a_graph_cannot_give_its_tensors_another_shape(saved: Path) -> None:
    """The first call would run, and the next find the other shape."""

    def change(modules: Any) -> None:
        graph = modules[""]["graph"]
        read = next(row for row in graph if row[0] == "get_attr" and row[2].endswith("weight"))
        call = ["call_method", "evil", "unsqueeze_", ["tuple", ["node", read[1]], 0], ["dict"], ["dict"]]
        graph.insert(len(graph) - 1, call)
        graph[-1][3] = ["tuple", ["tuple", *graph[-1][3][1:], ["node", "evil"]]]

    forge(saved, change)
    with pytest.raises(fq.ArchiveError, match="another shape, in place"):
        fq.load(saved)


def test_forged_module_class_is_refused(saved: Path) -> None:
    forge(
        saved,
        lambda modules: modules.update(
            x={"kind": "stock", "class": "torch.nn.Parameter", "settings": ["dict"], "absent": []}
        ),
    )
    with pytest.raises(fq.ArchiveError, match="does not have"):
        fq.load(saved)


@pytest.mark.parametrize(
    "settings",
    [
        {"forward": ["function", "getattr"]},
        {"forward": ["function", "torch.relu"]},
        {"forward": "x"},
        {"__class__": 1},
        {"__call__": ["function", "max"]},
        {"_call_impl": 3},
        {"_forward_hooks": ["dict"]},
    ],
    ids=str,
)
def test_settings_cannot_take_the_place_of_methods(saved: Path, settings: dict[str, Any]) -> None:
    def change(modules: Any) -> None:
        named = ["dict", *([key, value] for key, value in settings.items())]
        modules["evil"] = {
            **{"kind": "stock", "class": "torch.nn.modules.linear.Identity"},
            **{"settings": named, "absent": []},
        }
        call = ["call_module", "evil", "evil", ["tuple", ["node", "input_1"], "__class__"], ["dict"], ["dict"]]
        modules[""]["graph"].insert(1, call)

    forge(saved, change)
    with pytest.raises(fq.ArchiveError, match=r"would hide|is none|unknown kind|no model"):
        fq.load(saved)


def test_a_call_of_what_is_no_module_is_refused(saved: Path) -> None:
    row = ["call_module", "evil", "to_folder", ["tuple", "x"], ["dict"], ["dict"]]
    forge(saved, lambda modules: modules[""]["graph"].insert(1, row))
    with pytest.raises(fq.ArchiveError, match="no module of the model"):
        fq.load(saved, engine="reference")


def test_a_header_that_makes_no_model(saved: Path) -> None:
    forge(saved, lambda modules: modules[""].pop("graph"))
    with pytest.raises(fq.ArchiveError, match="makes no model"):
        fq.load(saved)


def test_only_converted_models_are_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2)).eval()
    with pytest.raises(fq.ArchiveError, match="converted"):
        fq.save(model, tmp_path / "x")
    with pytest.raises(fq.ArchiveError, match="cannot write"):
        fq.save(fq.quantize(model, [torch.randn(2, 2)]), tmp_path / "no" / "such" / "folder.safetensors")


def test_files_with_numbers_in_the_graph_still_load(tmp_path: Path) -> None:
    """As they were written before scales and zero points were state."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x], engine="reference")
    older = copy.deepcopy(quantized)
    lowering_of(older).reference = encode_graph(older.graph)
    older.delete_submodule("quantizers")
    loaded = fq.load(fq.save(older, tmp_path / "model.fq"))
    assert not [name for name in loaded.state_dict() if name.startswith("quantizers")]
    assert torch.equal(loaded(x), fq.load(fq.save(quantized, tmp_path / "new.fq"))(x))


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", float("nan")), ("scale", -1.0), ("scale", [1.0, 2.0]), ("zero_point", 300), ("zero_point", -1)],
)
def test_a_grid_that_is_none_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x], engine="reference")
    path, grid = next((path, part) for path, part in quantized.named_modules() if isinstance(part, Grid))
    lowering_of(quantized).filled.keep_up = lambda region: None
    grid._buffers[name] = torch.tensor(value)
    with pytest.raises(fq.FxQuantError, match=f"grid '{path}'"):
        fq.load(fq.save(quantized, tmp_path / "model.fq"))


@pytest.mark.broad
@pytest.mark.parametrize("name", [*ZOO])
def test_the_same_model_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    model, args, kwargs = entry.build().eval(), entry.inputs(), entry.kwargs()
    quantized = fq.quantize(
        model, [args or kwargs], example_inputs=args, example_kwargs=kwargs, engine="reference", num_batches=1
    )
    first = fq.save(quantized, tmp_path / "a.fq").read_bytes()
    assert fq.save(quantized, tmp_path / "b.fq").read_bytes() == first
    assert fq.save(fq.load(tmp_path / "a.fq"), tmp_path / "c.fq").read_bytes() == first


def test_files_know_of_no_engine(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 16, 16)
    mapping = fq.get_default_qconfig_mapping()
    prepared = fq.prepare_fx(ZOO["resnet"].build().eval(), mapping, (x,), target="x86-vnni")
    fq.calibrate(prepared, [x])
    files = {
        fq.save(fq.convert_fx(prepared, engine=engine), tmp_path / "m.fq").read_bytes() for engine in (None, "onednn")
    }
    assert len(files) == 1
    assert engine_of(fq.load(tmp_path / "m.fq")) == default_engine().name


class Experts(nn.Module):
    """Rows in the order of their experts, one product for all of them, as transformers computes a mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weights = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        expert, order = torch.sort(self.router(x).argmax(-1))
        ends = torch.cumsum(torch.histc(expert.float(), bins=4, min=0, max=3), 0, dtype=torch.int32)
        return torch.zeros_like(x).index_copy(0, order, torch._grouped_mm(x[order], self.weights, offs=ends))


@torch.no_grad()
def test_a_mixture_of_experts_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    quantized = fq.quantize(Experts().eval(), [(x,)], engine="onednn")
    fq.save(quantized, tmp_path / "experts.fq")
    for rows in (x, torch.randn(6, 8)):
        assert torch.equal(fq.load(tmp_path / "experts.fq", engine="onednn")(rows), quantized(rows))


class Positions(nn.Module):
    """An embedding by a parameter of its own, for as many rows as a size says, and a linear of the user's class."""

    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8))
        self.proj = self.Own(8, 8)

    def forward(self, shape: torch.Size) -> Tensor:
        batch, length = shape
        return self.proj(F.embedding(torch.arange(length), self.weight)).expand(batch, length, 8)


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.head = Positions(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(x + self.places(x.shape[:2]))
        return found if len({float(value) for value in found.flatten().tolist()}) else -found


def test_code_that_runs_beside_a_graph_finds_its_parameters_after_load(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Placed().eval()
    quantized = fq.quantize(model, [torch.randn(2, 5, 8) for _ in range(3)], precision="int8")
    loaded = fq.load(fq.save(quantized, tmp_path / "m.fq"), model)
    other = torch.randn(3, 7, 8)  # of sizes that the graph of `places` does not hold for
    assert torch.equal(loaded(other), quantized(other))
    again = fq.load(fq.save(loaded, tmp_path / "again.fq"), model)
    assert torch.equal(again(other), quantized(other))


class Pair(nn.Module):
    """Takes a container of tensors as one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, pair: Any) -> Tensor:
        a, b = pair.values() if isinstance(pair, dict) else pair
        return self.left(a) + self.right(b)


@pytest.mark.parametrize(
    "container", [tuple, list, lambda pair: {"a": pair[0], "b": pair[1]}], ids=["tuple", "list", "dict"]
)
def test_a_model_that_takes_a_container_is_saved(
    container: Callable[[tuple[Tensor, ...]], Any], tmp_path: Path
) -> None:
    pair = container((torch.randn(2, 8), torch.randn(2, 8)))
    quantized = fq.quantize(Pair().eval(), [(pair,)], example_inputs=(pair,), engine="reference", precision="int8")
    loaded = fq.load(fq.save(quantized, tmp_path / "pair.fq"), engine="reference")
    assert torch.equal(loaded(pair), quantized(pair))
