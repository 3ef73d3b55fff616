"""The float model is as it was, whatever its code writes to, in every method, also when preparing fails."""

from __future__ import annotations

import collections
import functools
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.capture.untouched.snapshot import Ground, Snapshot, left_as_it_was
from fxquant.graph.clone_tree import clone_tree
from ssd import Ssd, detect
from state import state_of
from zoo import ZOO

METHODS = ("auto", "symbolic", "export", "piecewise")
MAPPING = fq.get_default_qconfig_mapping("x86")
GLOBAL: dict[str, Any] = {"calls": 0}
LAST: Any = None


class Cache:
    def __init__(self) -> None:
        self.grid, self.calls, self.seen = torch.arange(8.0), 0, [[], {}]

    def scale(self, x: Tensor) -> Tensor:
        self.grid = self.grid.to(x)
        self.calls += 1
        self.seen[0].append(x.shape)
        return x * (self.grid.mean() / self.grid.mean())


class Slotted:
    __slots__ = ("last", "never")

    def __init__(self) -> None:
        self.last: Any = None


class Block(nn.Module):
    total = 0
    recent: ClassVar[list[Any]] = []

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self.cache, self.conv = cache, nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        type(self).total += 1
        self.recent.append(x)
        return self.cache.scale(F.relu(self.conv(x)))


@functools.lru_cache(maxsize=4)
def one(like: Any) -> Any:
    return like.new_ones(1)


class Writer(nn.Module):
    """Writes to all kinds of places that it reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.cache = Cache()
        self.one, self.two = Block(self.cache), Block(self.cache)
        self.slotted, self.space = Slotted(), SimpleNamespace(last=None)
        self.queue: collections.deque[Any] = collections.deque(maxlen=2)
        self.names: set[str] = set()
        self.plain = torch.zeros(3)
        self.register_buffer("steps", torch.zeros(()))
        self.hidden = [nn.BatchNorm2d(8)]
        self.lock, self.head = threading.Lock(), nn.Linear(8, 4)
        counter = [0]

        def count(x: Tensor) -> Tensor:
            counter[0] += 1
            return x

        self.counter, self.count = counter, count

    def forward(self, x: Tensor) -> Tensor:
        global LAST
        LAST = x
        GLOBAL["calls"] += 1
        self.last = x
        self.slotted.last, self.space.last = x, x
        self.queue.append(x)
        self.names.add(f"call {len(self.names)}")
        self.steps.add_(1)
        self.plain.add_(1)
        y = self.two(self.one(self.stem(x)))
        return self.head(self.count(y).mean((2, 3)) * one(y))


def build(cls: Any = Writer) -> nn.Module:
    torch.manual_seed(0)
    model = cls().eval()
    return model


def around() -> Any:
    return GLOBAL["calls"], LAST, Block.total, list(Block.recent)


@pytest.fixture(autouse=True)
def clean() -> Any:
    global LAST
    LAST = None
    GLOBAL["calls"], Block.total = 0, 0
    Block.recent.clear()
    one.cache_clear()


@pytest.mark.parametrize("method", METHODS)
def test_what_a_forward_writes_to_is_as_it_was(method: str) -> None:
    model, x = build(), torch.randn(2, 3, 8, 8)
    before, outside = state_of(model), around()
    try:
        prepared = fq.prepare_fx(model, MAPPING, (x,), method=method)
    except fq.CaptureError:
        assert method in ("export", "symbolic")
    else:
        fq.calibrate(prepared, [x, x])
        quantized = fq.convert_fx(prepared)
        assert around() == outside
        assert quantized(x).shape == (2, 4)
    assert state_of(model) == before


@pytest.mark.parametrize("method", METHODS)
def test_also_when_preparing_fails(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build(), torch.randn(2, 3, 8, 8)
    before, outside = state_of(model), around()

    def fail(*_: Any) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr("fxquant.capture_with_config.place_regions", fail)
    with pytest.raises((RuntimeError, fq.CaptureError)):
        fq.prepare_fx(model, MAPPING, (x,), method=method)
    assert state_of(model) == before
    assert around() == outside


def test_a_forward_that_raises_leaves_everything_as_it_was() -> None:
    class Raises(Writer):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise ValueError("no")

    model = build(Raises)
    before, outside = state_of(model), around()
    for call in (lambda: fq.prepare_fx(model, MAPPING, (torch.randn(2, 3, 8, 8),)), lambda: fq.fuse_fx(model)):
        with pytest.raises(fq.CaptureError):
            call()
    assert state_of(model) == before
    assert around() == outside


def test_the_result_has_state_of_its_own() -> None:
    model, x = build(), torch.randn(2, 3, 8, 8)
    prepared = fq.prepare_fx(model, MAPPING, (x,), method="piecewise")
    before = state_of(model)
    prepared(x)
    assert state_of(model) == before
    assert prepared.cache is not model.cache
    assert prepared.cache is prepared.one.cache is prepared.two.cache  # what was shared still is
    assert prepared.lock is model.lock
    assert prepared.cache.calls == 2


def test_two_calls_that_differ_through_a_list_are_not_one_graph() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.kept = nn.Linear(4, 4), [torch.zeros(4)]

        def forward(self, x: Tensor) -> Tensor:
            self.kept.append(self.fc(x).mean(0))
            return sum(self.kept) + x

    model, x = build(Sums), torch.randn(2, 4)
    quantized = fq.quantize(model, [x], example_inputs=(x,))
    assert len(model.kept) == 1
    once = quantized(x)
    assert not torch.allclose(quantized(x), once)


@pytest.mark.parametrize("method", METHODS)
def test_parameters_that_a_call_writes_to_are_the_results_own(method: str) -> None:
    class Clips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.fc = nn.Embedding(8, 4, max_norm=0.1), nn.Linear(4, 4)

        def forward(self, index: Tensor) -> Tensor:
            self.fc.weight.data.mul_(0.5)
            return self.fc(self.embed(index))

    model, index = build(Clips), torch.tensor([[1, 2, 3]])
    before = state_of(model)
    try:
        prepared = fq.prepare_fx(model, MAPPING, (index,), method=method)
    except fq.CaptureError:
        assert method in ("symbolic", "export")
    else:
        fq.calibrate(prepared, [index])
        fq.convert_fx(prepared)(index)
    assert state_of(model) == before


def test_large_and_odd_attributes_stay_what_they_are(tmp_path: Any) -> None:
    numpy = pytest.importorskip("numpy")
    with open(tmp_path / "log", "w") as log:
        model = build()
        model.table, model.log, model.kind = numpy.zeros(1000), log, torch.float32
        model.settings = {"log": [log], "lock": model.lock}
        x = torch.randn(2, 3, 8, 8)
        quantized = fq.quantize(model, [x], example_inputs=(x,), method="piecewise")
    assert quantized.table is model.table
    assert quantized.log is log
    assert quantized.settings == model.settings and quantized.settings is not model.settings


class Makes(collections.OrderedDict[str, Any]):
    """Items that are made anew for each reader, as transformers has its activations."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


class Loud(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("not to be read")


def test_containers_that_say_something_else_about_their_items() -> None:
    model = build()
    model.makes, model.loud = Makes(a=lambda: 1 / 0), Loud([1])
    before = Snapshot(model)
    model.makes["b"] = print
    model.loud.append(2)
    assert {"makes", "loud"} <= {*before.changed()[""]}
    before.restore()
    assert [*model.makes] == ["a"] and len(model.loud) == 1
    x = torch.randn(2, 3, 8, 8)
    fq.quantize(model, [x], example_inputs=(x,), method="piecewise")(x)


def test_a_snapshot_tells_what_changed() -> None:
    model = build()
    before = Snapshot(model)
    with torch.no_grad():
        model(torch.randn(2, 3, 8, 8))
    found = before.changed()
    assert {"last", "cache", "queue", "slotted", "space", "names"} <= {*found[""]}
    assert found["one"] == found["two"] == ["cache"]
    before.restore()
    assert not before.changed()


class Tally(Writer):
    """Counts in a closure that only a function leads to."""

    def __init__(self) -> None:
        super().__init__()
        calls = 0

        def tally(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return x * calls / calls

        self.tally = tally

    def forward(self, x: Tensor) -> Tensor:
        return self.tally(super().forward(x))


def test_a_snapshot_on_a_ground_knows_and_restores_the_same() -> None:
    model, outside = build(Tally), around()
    tree = clone_tree(model)
    alone, on_ground = Snapshot(tree), Snapshot(tree, ground=Ground(model))
    with torch.no_grad():
        tree(torch.randn(2, 3, 8, 8))
    either = {"count", "counter"}  # two names for one list
    changed, same = ({at: {*names} - either for at, names in s.changed().items()} for s in (alone, on_ground))
    assert same == changed
    assert "tally" in same[""]
    on_ground.restore()
    assert not alone.changed()
    assert around() == outside


def test_two_forms_of_a_model_are_left_as_they_were() -> None:
    """Whose code is followed once: attributes of each, and the globals of both."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls.append(1)
            GLOBAL["calls"] += 1
            return x

    one, other, calls = Counts(), Counts(), GLOBAL["calls"]
    with left_as_it_was(one, other):
        other(one(torch.ones(1)))
        assert GLOBAL["calls"] == calls + 2
    assert (one.calls, other.calls, GLOBAL["calls"]) == ([], [], calls)


@pytest.mark.parametrize("method", ["auto", "piecewise"])
def test_a_detector_with_cached_boxes_as_it_is_written(method: str) -> None:
    torch.manual_seed(0)
    model, x = Ssd().eval(), torch.randn(2, 3, 32, 32)
    expected = detect(model, x)
    before = state_of(model)
    prepared = fq.prepare_fx(model, MAPPING, (x,), method=method)
    fq.calibrate(prepared, [x])
    quantized = fq.convert_fx(prepared)
    assert state_of(model) == before
    assert detect(model, x) == expected
    boxes, labels, scores = quantized(x)
    assert len(boxes) == len(labels) == len(scores) == 2
    assert abs(detect(quantized, x) - expected) <= 0.2 * expected
    assert fq.explain(quantized).int8_share == 1.0
    assert len(quantized(torch.randn(1, 3, 32, 32))[0]) == 1 or method == "auto"


@pytest.mark.broad
@pytest.mark.parametrize(("name", "method"), [(name, METHODS[i % 4]) for i, name in enumerate(ZOO)])
def test_over_the_zoo(name: str, method: str) -> None:
    entry = ZOO[name]
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    seen: list[Any] = []
    model.register_forward_hook(lambda module, given, output: seen.append(output))
    with torch.no_grad():
        expected = model(*args, **kwargs)
    before = state_of(model)
    prepared = fq.prepare_fx(model, MAPPING, args, example_kwargs=kwargs, method=method)
    assert len(seen) == 1
    fq.calibrate(prepared, [args or kwargs])
    fq.convert_fx(prepared)
    assert state_of(model) == before
    with torch.no_grad():
        torch.testing.assert_close(model(*args, **kwargs), expected, rtol=0, atol=0)


class Makers(collections.OrderedDict):  # type: ignore[type-arg]
    """As transformers keeps its activations: what is read is made of what is held."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key)(1)


MAKERS = Makers(relu=lambda _: F.relu, none=lambda: None)


class Made(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.makers = nn.Linear(4, 4), MAKERS

    def forward(self, x: Tensor) -> Tensor:
        return MAKERS["relu"](self.linear(x))


def test_a_dict_is_read_past_the_methods_of_its_class() -> None:
    held = list(dict.values(MAKERS))
    prepared = fq.prepare_fx(Made().eval(), MAPPING, (torch.randn(2, 4),))
    assert fq.explain(prepared).int8_share == 1.0
    assert list(dict.values(MAKERS)) == held


class Shard(Tensor):
    """Stands for what fully_shard makes of parameters."""


class Sharded(nn.Module):
    calls: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4).as_subclass(Shard))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        self._parameters["weight"] = nn.Parameter(torch.ones(4))  # for the call, and the next one
        return self.linear(x)


def test_parameters_that_torch_moves_about_stay_and_all_else_goes_back() -> None:
    model = Sharded()
    with left_as_it_was(model):
        model(torch.randn(2, 4))
        gathered = model.weight
    assert model.weight is gathered and Sharded.calls == []
