"""A model of several regions runs them in a runtime, inside its own Python, and in oneDNN where a call is new."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.runtimes.onnxruntime import OnnxRuntime
from fxquant.engines.runtimes.regions import RegionRunner
from fxquant.graph.region import Region, lowering_of, regions
from fxquant.numerics.affine import sqnr_db

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


ENGINES: tuple[Any, ...] = ("onednn", "reference", "onnxruntime")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> tuple[Tensor, list[Tensor]]:
        y = self.b(self.a(x).relu()) * scale
        return (y if mask is None else y * mask), [x.mean(-1)]


class Branches(nn.Module):
    """Python decides by the data, so this does not trace; `mlps` are regions, and `head`, which is one product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mlps = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        means = []
        for mlp in self.mlps:
            y, more = mlp(x, None, scale=0.5)
            x = x + y if float(y.sum()) > -1e9 else x
            means += more
        return {"out": self.head(x), "mean": torch.stack(means)}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Branches().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of a runtime got."""
    seen: list[int] = []
    run = OnnxRuntime._run

    def count(self: OnnxRuntime, session: object, arrays: list[object]) -> list[Tensor]:
        seen.append(len(arrays))
        return run(self, session, arrays)

    monkeypatch.setattr(OnnxRuntime, "_run", count)
    return seen


def agree(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> bool:
    return all(sqnr_db(expected[name].detach(), actual[name]) > 40 for name in ("out", "mean"))


def test_regions_run_in_the_runtime(model: nn.Module, x: Tensor, calls: list[int], tmp_path: Path) -> None:
    reference = fq.quantize(model, [x], engine="reference", target="onnxruntime")
    found = fq.quantize(model, [x], engine="onnxruntime")
    runners = {path: type(lowering_of(region).runner) for path, region in regions(found)}
    assert [path for path, runner in runners.items() if runner is RegionRunner] == ["mlps.0", "mlps.1"]
    assert "head" in runners
    assert isinstance(found.mlps[0], Block)  # type: ignore[index]
    for twin in (found, copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        for rows in (x, torch.cat((x, x))):
            calls.clear()
            assert agree(reference(rows), twin(rows))
            assert calls == [1, 1]
    again = fq.load(fq.save(found, tmp_path / "model"), model, engine="onnxruntime")
    assert agree(reference(x), again(x))


def test_calls_unlike_the_example_run_on_onednn(model: nn.Module, x: Tensor, calls: list[int]) -> None:
    found = fq.quantize(model, [x], engine="onnxruntime")
    expected = fq.quantize(model, [x], target="onnxruntime")
    calls.clear()
    assert agree(expected(x[:, :3]), found(x[:, :3]))  # another length
    seen: list[str] = []
    handle = found.mlps[0].register_forward_hook(lambda *_: seen.append("mlps.0"))  # type: ignore[union-attr,index]
    assert calls == []
    found(x)
    assert (seen, len(calls)) == (["mlps.0"], 1)
    handle.remove()
    found(x)
    assert len(calls) == 3


def test_what_a_runtime_cannot_take_stays_on_onednn(
    model: nn.Module, x: Tensor, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = OnnxRuntime._run
    monkeypatch.setattr(OnnxRuntime, "_run", lambda *args: [tensor + 9 for tensor in counted(*args)])
    with pytest.raises(fq.FxQuantError, match="something else"):
        fq.quantize(model, [x], engine="onnxruntime")

    def fail_once(self: OnnxRuntime, graph: object) -> None:
        monkeypatch.setattr(OnnxRuntime, "_adapt", lambda *_: None)
        raise fq.FxQuantError("no such op")

    monkeypatch.setattr(OnnxRuntime, "_run", counted)
    monkeypatch.setattr(OnnxRuntime, "_adapt", fail_once)
    with pytest.warns(UserWarning, match=r"module 'mlps.0' runs on onednn, not onnxruntime. no such op"):
        found = fq.quantize(model, [x], engine="onnxruntime")
    calls.clear()
    assert sqnr_db(model(x)["out"].detach(), found(x)["out"]) > 25
    assert calls == [1]


def test_one_graph_runs_in_the_runtime_and_at_other_sizes_on_onednn(
    calls: list[int], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    x = torch.randn(2, 3, 8, 8)
    found = fq.quantize(net, [x], engine="onnxruntime")
    assert "engine='onnxruntime'" in repr(found)
    assert len(fq.explain(found)) > 0
    calls.clear()
    for given in (x, x[:1], torch.randn(1, 3, 9, 12), torch.randn(2, 3, 7, 7)):
        assert sqnr_db(net(given).detach(), found(given)) > 20
    assert len(calls) == 2
    assert [record.message for record in caplog.records if "onednn" in record.message] == [
        "'Sequential' runs on onednn, not onnxruntime, for other inputs than the example's. An input is (1, 3, 9, 12) "
        "float32, on cpu; the example's was (batch, 3, 8, 8) float32."
    ]
    with pytest.raises(RuntimeError, match=r"weight of \(4, 3, 3, 3\) cannot take an input of \(2, 4, 8, 8\)"):
        found(torch.randn(2, 4, 8, 8))
    fq.save(found, tmp_path / "net")
    assert sqnr_db(found(x), fq.load(tmp_path / "net")(x)) > 30


def test_a_runtime_that_fails_is_not_asked_again(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), torch.randn(2, 8)
    found = fq.quantize(net, [x], engine="onnxruntime")
    expected, counted = found(x), OnnxRuntime._run
    calls.clear()

    def fail(*args: Any) -> Any:
        counted(*args)
        raise ValueError("out of memory")

    monkeypatch.setattr(OnnxRuntime, "_run", fail)
    with pytest.raises(RuntimeError):
        found(torch.randn(2, 9))  # a wrong call is not the runtime's fault
    assert "engine='onnxruntime'" in repr(found)
    for _ in range(3):
        assert sqnr_db(expected, found(x)) > 40
    assert calls == [1]
    assert "engine='onednn'" in repr(found)
    monkeypatch.setattr(OnnxRuntime, "_run", counted)
    copy.deepcopy(found)(x)  # which has a session of its own
    assert calls == [1, 1]


class Norms(nn.Module):
    def __init__(self, *, counts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.counts = counts
        self.register_buffer("count", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.count.add_(1)  # type: ignore[operator]
        out: Tensor = self.b(self.norm(self.a(x))) * self.count
        return out


def test_changes_of_the_model_are_seen(calls: list[int]) -> None:
    x = torch.randn(4, 8)
    model = Norms().eval()
    other = Norms().eval()
    nn.init.normal_(other.a.weight)
    twins = [fq.quantize(model, [x], engine="onnxruntime", target="x86") for _ in range(4)]
    loaded, shifted, hooked, copied = twins
    lowered = fq.quantize(other, [x], target="x86")
    loaded.load_state_dict(lowered.state_dict())
    with torch.no_grad():
        shifted.norm.bias.add_(100.0)  # type: ignore[union-attr,operator]
    heard: list[int] = []
    hooked.norm.register_forward_hook(lambda *_: heard.append(1))  # type: ignore[union-attr]
    calls.clear()
    loaded_output = loaded(x)  # in a runtime that was made again, and compared
    assert len(calls) == 2
    assert sqnr_db(lowered(x), loaded_output) > 40
    for twin in (shifted, hooked):
        calls.clear()
        twin(x)
        assert calls == []
    assert heard == [1]
    assert (shifted(x) - twins[3](x)).abs().max() > 1
    calls.clear()
    fresh, stale = copy.deepcopy(copied), copy.deepcopy(shifted)
    fresh(x)
    assert len(calls) == 1
    stale(x)
    late = pickle.loads(pickle.dumps(copied))
    with torch.no_grad():
        late.norm.bias.add_(100.0)
    late(x)
    assert len(calls) == 1


def test_a_model_that_changes_its_buffers_stays_on_onednn() -> None:
    x = torch.randn(4, 8)
    model = Norms(counts=True).eval()
    with pytest.raises(fq.ConfigError, match="changes 'count' when it is called"):
        fq.quantize(model, [x], engine="onnxruntime")
    with pytest.warns(UserWarning, match="onnxruntime is left out.*changes 'count'"):
        found = fq.quantize(model, [x], engine="auto")
    assert "engine='onednn'" in repr(found)


class Pairs(nn.Module):
    """Two batches, and a number in the result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, int]:
        return (self.a(q)[:, None] - self.b(k)[None]).abs().sum(-1), q.shape[0]


def test_batches_that_differ_and_numbers_in_the_result(calls: list[int]) -> None:
    q, k = torch.randn(4, 8), torch.randn(4, 8)
    model = Pairs().eval()
    found = fq.quantize(model, [(q, k)], example_inputs=(q, k), engine="onnxruntime")
    for left, right, count in ((q, k, 1), (q[:2], torch.randn(6, 8), 0), (q[:3], k[:3], 1)):
        calls.clear()
        scores, rows = found(left, right)
        assert (rows, len(calls)) == (len(left), count)
        assert sqnr_db(model(left, right)[0].detach(), scores) > 20


class Arms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x) if float(x.sum()) > -1e9 else self.two(x)
        return out


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(self.fc(x).double())


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.filterwarnings("ignore:.*runs on onednn")
@pytest.mark.parametrize("kind", [Arms, Doubles])
def test_auto_goes_on_where_a_runtime_fails(kind: type[nn.Module]) -> None:
    x = torch.randn(4, 8)
    net = kind().eval()
    prepared = fq.prepare_fx(net, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    for found in (fq.convert_fx(prepared, engine="auto"), fq.quantize(net, [x], engine="auto")):
        assert sqnr_db(net(x).detach(), found(x)) > 20


def test_sessions_beside_others_do_not_spin(model: nn.Module, x: Tensor) -> None:
    found = fq.quantize(model, [x], engine="onnxruntime")
    session = lowering_of(found.mlps[0]).runner.runtime._session[0]  # type: ignore[index,union-attr]
    assert session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_explains_the_engine_that_runs() -> None:
    """oneDNN lacks dilated transposed convolutions; that is of no concern to another runtime."""
    net, x = nn.Sequential(nn.ConvTranspose2d(3, 4, 3, dilation=2), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    by_engine = {engine: fq.explain(fq.quantize(net, [x], engine=engine, target="x86")) for engine in ENGINES}
    found = {engine: [row.status for row in rows if row.kind != "relu"] for engine, rows in by_engine.items()}
    assert found == {"onednn": ["float"], "reference": ["int8"], "onnxruntime": ["int8"]}


def test_auto_takes_models_of_several_regions(model: nn.Module, x: Tensor) -> None:
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    for found in (fq.quantize(model, [x], engine="auto"), fq.convert_fx(prepared, engine="auto")):
        assert sqnr_db(model(x)["out"].detach(), found(x)["out"]) > 25


class Opaque(nn.Module):
    """One graph, in which a module that looks at values is a call."""

    class Decode(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    def __init__(self) -> None:
        super().__init__()
        self.body, self.decode = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), self.Decode()

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.body(x))


def test_a_graph_that_calls_python_stays_on_onednn() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = Opaque()
    with pytest.warns(UserWarning, match=r"the model runs on onednn, not .*calls module 'decode' \(Decode\)"):
        found = fq.quantize(model, [x], engine="onnxruntime")
    assert isinstance(found, Region)
    reasons = [row.reason for row in fq.explain(copy.deepcopy(found)) if row.status == "int8"]
    assert reasons and all("on onednn: onnxruntime does not run it. It calls module 'decode'" in why for why in reasons)
    assert float(found(x).sum()) > 0
    assert torch.allclose(found(x), model(x), atol=0.1)


class Strided(nn.Module):
    """Reads memory as it lies, so a picture with its channels last is another one to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        y = self.conv(x).relu()
        return y.as_strided((2, 8, 20), (512, 64, 1)), y.stride(1)


def test_pictures_with_their_channels_last() -> None:
    model, x = Strided().eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [(x,)], engine="onnxruntime")
    for given in (x, x.contiguous(memory_format=torch.channels_last), x):
        for _ in range(2):
            expected, found = model(given), quantized(given)
            assert expected[1] == found[1]
            assert sqnr_db(expected[0], found[0]) > 25


def test_modes_of_what_only_holds_tensors_are_no_change(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    recurrent = nn.Sequential(nn.LSTM(8, 8, batch_first=True)).eval()
    linears = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    with torch.no_grad():
        fq.quantize(recurrent, [x], engine="onnxruntime").eval()(x)
        fq.quantize(linears, [x], engine="onnxruntime", mode="weight_only").eval()(x)
    assert "not as it was converted" not in caplog.text


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.fc(x))


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, given: dict[str, Any]) -> tuple[Tensor, int]:
        return self.fc(given["x"]), given["number"]


class Low(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.float()).bfloat16()


@pytest.mark.parametrize(
    ("model", "arg", "match"),
    [
        (Spectrum(), torch.randn(2, 8), "gives complex tensors"),
        (Numbered(), {"x": torch.randn(2, 8), "number": 3}, "holds what is no tensor"),
        (Low(), torch.randn(2, 8), "output.*is BFLOAT16, which numpy lacks"),
        (Low(), torch.randn(2, 8).bfloat16(), "input 'x' is BFLOAT16"),
    ],
    ids=["complex", "number", "bfloat16 output", "bfloat16 input"],
)
def test_what_no_runtime_takes_is_said_at_conversion(model: nn.Module, arg: object, match: str) -> None:
    prepared = fq.prepare_fx(model.eval(), fq.get_default_qconfig_mapping("x86"), (arg,))
    prepared(arg)
    with pytest.raises(fq.ConfigError, match=f"{match}.*engine='onednn'"):
        fq.convert_fx(prepared, engine="onnxruntime")


def test_copies_of_copies_of_a_changed_model_stay_on_onednn() -> None:
    """The first copy that is called takes the changed tensors for what it is; its own copies must not."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)).eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    pair = [fq.convert_fx(prepared, engine=engine) for engine in ("reference", "onnxruntime")]
    for each in pair:
        each(x)
        weight = dict(each.named_buffers())["2.weight"]
        weight.copy_(weight.flip(0))
    for _ in range(3):
        pair = [copy.deepcopy(each) for each in pair]
        expected, found = (each(x) for each in pair)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("package", ["onnxruntime", "openvino"])
def test_gradients_are_those_of_the_reference(package: str) -> None:
    """Runtimes give none: a call that wants some, of a parameter or an input, runs on oneDNN."""
    pytest.importorskip(package)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.PReLU(16), nn.Linear(16, 5), nn.PReLU()).eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    pair = [fq.convert_fx(prepared, engine=engine) for engine in ("reference", package)]
    for wanted in (True, False):
        for each in pair:
            each(x)
            each.get_submodule("3").weight.requires_grad_(wanted)
        for given in (x, x.clone().requires_grad_()):
            expected, found = (each(given) for each in pair)
            assert found.requires_grad == expected.requires_grad == wanted
            torch.testing.assert_close(found, expected)
            with torch.no_grad():
                assert not pair[1](given).requires_grad


def test_code_put_into_a_model_later_stays_on_onednn(calls: list[int]) -> None:
    """It would be exported as it was at one call."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.PReLU(16), nn.Linear(16, 5)).eval(), torch.randn(4, 8)
    converted = fq.quantize(model, [x], engine="onnxruntime")
    converted(x)
    seen: list[int] = []

    def count(x: Tensor) -> Tensor:
        seen.append(len(calls))
        return x.relu() * len(seen)

    converted.get_submodule("1").forward = count  # type: ignore[method-assign]
    before = len(calls)
    for _ in range(3):
        converted(x)
    assert seen == [before] * 3


def test_threads_that_call_a_copy_first_all_run_in_the_runtime() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)).eval(), torch.randn(4, 8)
    converted = fq.quantize(model, [x], engine="onnxruntime")
    expected = converted(x)
    for _ in range(20):
        made = copy.deepcopy(converted)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(made, [x] * 16))
        assert all(torch.equal(each, expected) for each in found)
        runner = lowering_of(made).runner  # type: ignore[arg-type]
        assert runner is not None and runner.engine == "onnxruntime"
