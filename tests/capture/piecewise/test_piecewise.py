"""Models whose Python does not trace: prepared they compute the same on both arms, converted they run."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxquant as fq
from fxquant.capture import capture
from fxquant.graph.region import Region, regions
from fxquant.graph.tree import tree_of
from fxquant.numerics.affine import sqnr_db
from zoo import conv_bn_relu


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = conv_bn_relu(8, 8)
        self.right = nn.Sequential(conv_bn_relu(8, 8), conv_bn_relu(8, 8))
        self.head = nn.Linear(8, 4)


class Branch(Base):
    """A branch on data; only one arm is in the example."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.left(x) if x.sum() > 0 else self.right(x)
        return self.head(x.mean((2, 3)))


class WhileLoop(Base):
    """As many rounds as the data asks for."""

    def forward(self, x: Tensor) -> Tensor:
        x, rounds = self.stem(x), 0
        while x.abs().max() > 0.5 and rounds < 4:
            x, rounds = self.left(x) * 0.5, rounds + 1
        return self.head(x.mean((2, 3)))


class OverRows(Base):
    """A loop over a tensor, by value, and a Python list that grows."""

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for row in self.stem(x):
            if row.mean().item() > 0:
                found.append(self.head(row.mean((1, 2))))
            else:
                found.append(self.head(self.left(row[None])[0].amax((1, 2))))
        return found


class Generator(Base):
    """A generator between modules, and a dict out."""

    def parts(self, x: Tensor) -> Iterator[Tensor]:
        for module in (self.left, self.right):
            x = module(x)
            if x.max() < 100:
                yield x

    def forward(self, x: Tensor) -> dict[str, Any]:
        parts = list(self.parts(self.stem(x)))
        return {"logits": self.head(sum(parts).mean((2, 3))), "count": len(parts)}


@dataclass
class Output:
    logits: Tensor
    best: int
    hidden: tuple[Tensor, ...] = ()


class DataclassOut(Base):
    def forward(self, x: Tensor) -> Output:
        hidden = self.left(self.stem(x))
        logits = self.head(hidden.mean((2, 3)))
        return Output(logits=logits, best=int(logits[0].argmax()), hidden=(hidden,))


class TryExcept(Base):
    """Control flow by exceptions, numpy, and a print."""

    def forward(self, x: Tensor, verbose: bool = False) -> Tensor:
        x = self.left(self.stem(x))
        try:
            if float(x.detach().numpy().sum()) > 0:
                raise ValueError
            x = x + 1
        except ValueError:
            x = self.right(x)
        if verbose:
            print("sum", x.sum())
        return self.head(x.mean((2, 3)))


class Cache(NamedTuple):
    key: Tensor | None
    steps: int


class WithCache(nn.Module):
    """A kv-cache, a tuple in and out, that grows with the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        key = self.k(x)
        if cache.key is not None:
            key = torch.cat([cache.key, key], 1)
        scores = self.q(x) @ key.transpose(1, 2)
        if scores.max() > 1e6:
            scores = scores / 2
        return scores.softmax(-1) @ key, Cache(key, cache.steps + 1)


class SharedInLoop(nn.Module):
    """One module, called with different sizes and ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.relu(self.fc(x))
            if x.sum() > 1e6:
                break
        flat = self.fc(x.reshape(-1, 8))
        return self.out(flat + self.fc(x.mean((0, 1))))


class Flags(nn.Module):
    """Arms that call one module in different ways."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
            self.extra = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor, twice: bool = False, scale: Tensor | None = None) -> Tensor:
            x = F.relu(self.bn(self.conv(x)))
            x = self.extra(x) if twice else x
            return x if scale is None else x * scale

    def __init__(self) -> None:
        super().__init__()
        self.block = Flags.Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if x.sum() > 0 else self.block(x, twice=True, scale=x.abs().mean())


class ByClass(Base):
    """Code that looks at the classes, attributes and weights of its modules."""

    def forward(self, x: Tensor) -> Tensor:
        for module in (self.stem, self.left, self.right):
            x = module(x) if isinstance(module, nn.Conv2d) else module(x) + len(module)
            x = x if x.sum() < 1e6 else -x
        x = x.to(self.head.weight.dtype) * self.stem.weight.abs().mean() * self.stem.out_channels
        return F.linear(x.mean((2, 3)), self.head.weight, self.head.bias)


class Functional(nn.Module):
    """Weighted functions on bare parameters, in code that branches."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.3)
        self.b = nn.Parameter(torch.randn(8))
        self.table = nn.Parameter(torch.randn(10, 8))
        self.product = nn.Parameter(torch.randn(8, 16))
        self.last = nn.Parameter(torch.randn(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.w, self.b, padding=1)
        if x.sum() > 0:
            x = x.relu()
        else:
            x = F.conv2d(x, self.w.mean(1, keepdim=True), groups=8)
        x = x.mean((2, 3)) + F.embedding(torch.arange(x.shape[0]), self.table)
        return F.linear(torch.tanh(x @ self.product), self.last)


class Borrowed(nn.Module):
    """Weights of modules that are never called, passed to functions by the code around them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x if x.sum() > 0 else -x, self.conv.weight)
        return F.linear(x.mean((2, 3)), self.fc.weight, self.fc.bias)


class Tied(nn.Module):
    """An embedding whose weight is the last layer, in code that branches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(self.embed((x.mean((2, 3)) * 100).long().abs() % 20))
        return self.out(y if y.sum() > 0 else -y)


class Stock(nn.Module):
    """Modules that have no weights in the graph's sense, an opaque one, and hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn = nn.Conv2d(3, 8, 3), nn.GRUCell(8, 8)
        self.conv.register_forward_hook(lambda module, args, out: out * 2)
        self.drop, self.norm = nn.Dropout(0.5), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.drop(self.conv(x)).mean((2, 3)))
        return self.rnn(h) if h.sum() > -1e6 else h


MODELS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (
        Branch,
        WhileLoop,
        OverRows,
        Generator,
        DataclassOut,
        TryExcept,
        Flags,
        ByClass,
        Borrowed,
        Functional,
        Tied,
        Stock,
    )
}


def build(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    model = cls()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def data() -> list[Tensor]:
    return [sign * torch.rand(n, 3, 8, 8) * size for n in (1, 2, 3) for sign in (1, -1) for size in (0.3, 3.0)]


def leaves(value: Any) -> list[Any]:
    return tree_leaves(vars(value) if isinstance(value, Output) else value)


def assert_same(ours: Any, theirs: Any) -> None:
    for actual, expected in zip(leaves(ours), leaves(theirs), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_prepared_is_the_model_and_converted_is_close(name: str) -> None:
    model = build(MODELS[name])
    before = copy.deepcopy(model.state_dict())
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data()[1],))
    for x in data():
        assert_same(prepared(x), model(x))
    fq.calibrate(prepared, [(x, "label") for x in data()])
    quantized = fq.convert_fx(prepared)
    close = 0
    for x in data():
        pairs = [(a, b) for a, b in zip(leaves(model(x)), leaves(quantized(x)), strict=False) if isinstance(a, Tensor)]
        close += all(sqnr_db(a, b) > 15 for a, b in pairs if a.is_floating_point())
    assert close >= 0.7 * len(data())  # a decision that is close to call may fall the other way
    assert fq.explain(quantized).int8_share >= {"Stock": 0.3}.get(name, 1.0)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_other_modes(name: str, mode: str) -> None:
    model = build(MODELS[name])
    quantized = fq.quantize(model, mode=mode, example_inputs=(data()[0],))
    for x in data():
        quantized(x)
    assert any(row.status == mode for row in fq.explain(quantized))


@pytest.mark.broad
@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in MODELS if name != "Stock"])  # its hook is a lambda
@pytest.mark.parametrize("stage", ["prepared", "converted"])
def test_copies_pickles_and_state_dicts(name: str, stage: str) -> None:
    model = build(MODELS[name])
    subject = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (data()[0],))
    fq.calibrate(subject, data())
    if stage == "converted":
        subject = fq.convert_fx(subject)
    buffer = io.BytesIO()
    torch.save(subject, buffer)
    buffer.seek(0)
    fresh = copy.deepcopy(subject)
    for parameter in (*fresh.parameters(), *fresh.buffers()):
        parameter.zero_()
    fresh.load_state_dict(subject.state_dict())
    twins = [copy.deepcopy(subject), pickle.loads(pickle.dumps(subject)), torch.load(buffer, weights_only=False), fresh]
    for twin in twins:
        assert fq.explain(twin) == fq.explain(subject)
        for x in data()[:4]:
            for actual, expected in zip(leaves(twin(x)), leaves(subject(x)), strict=True):
                assert torch.equal(torch.as_tensor(actual), torch.as_tensor(expected))


@torch.no_grad()
def test_a_cache_goes_in_and_out() -> None:
    model = build(WithCache)
    x = torch.randn(2, 3, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x, Cache(None, 0)))
    ours = theirs = Cache(None, 0)
    for _ in range(4):
        a, ours = prepared(x, ours)
        b, theirs = model(x, theirs)
        torch.testing.assert_close(a, b)
    assert ours.key.shape == (2, 12, 8)
    quantized = fq.convert_fx(prepared)
    assert sqnr_db(model(x, theirs)[0], quantized(x, ours)[0]) > 25


@torch.no_grad()
def test_one_module_called_with_several_ranks() -> None:
    model = build(SharedInLoop)
    x = torch.randn(2, 3, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), method="piecewise")
    assert_same(prepared(x), model(x))
    assert sqnr_db(model(x), fq.convert_fx(prepared)(x)) > 25


def test_regions_are_the_largest_that_trace() -> None:
    prepared = fq.prepare_fx(build(Branch), fq.get_default_qconfig_mapping(), (data()[0],))
    assert type(prepared) is Branch
    # the arm that the example does not take is known module by module only
    arms = [path for path, _ in regions(prepared)]
    assert arms in (["stem", "left", "right.0.0", "right.1.0", "head"], ["stem", "left.0", "right", "head"])


def test_state_dict_keys_stay() -> None:
    model = build(Branch)
    captured = capture(model, (data()[0],))
    assert set(captured.state_dict()) == set(model.state_dict())
    quantized = fq.quantize(model, data())
    state = quantized.state_dict()
    assert state["stem.weight"].dtype == torch.int8
    assert state["stem.weight_scale"].shape == (8,)
    assert not any(".op." in key for key in state)


def test_code_outside_reads_float_weights() -> None:
    model = build(Branch)
    quantized = fq.quantize(model, data())
    assert quantized.stem.weight.dtype == torch.float32
    assert torch.allclose(quantized.stem.weight, model.stem.weight, atol=0.01)
    assert quantized.stem.in_channels == 3
    assert isinstance(quantized.stem, nn.Conv2d)
    assert isinstance(quantized.stem, Region)


def test_a_second_function_on_a_weight_is_in_the_account() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.embed = nn.Parameter(torch.randn(8, 8)), nn.Embedding(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed((x.mean((2, 3)) * 100).long().abs() % 8)
            x = F.linear(x if x.sum() > 0 else -x, self.w) @ self.w
            return F.linear(x, self.embed.weight)

    account = fq.explain(fq.prepare_fx(Twice().eval(), fq.get_default_qconfig_mapping(), (data()[0],)))
    assert account.weighted() == (2, 4)
    assert {left.path: left.reason for left in account.left if left.path} == {
        "w": "its weight is also passed to matmul, in float",
        "embed": "its weight is also passed to linear, in float",
    }


def test_rules_name_modules_inside_regions() -> None:
    mapping = fq.get_default_qconfig_mapping().set_module_name("stem", None).set_module_name("right.1", None)
    explanation = fq.explain(fq.prepare_fx(build(Branch), mapping, (data()[0],)))
    floats = {row.path for row in explanation if row.is_weighted and row.status == "float"}
    assert floats == {"stem", "right.1.0"}
    order = fq.get_default_qconfig_mapping().set_module_name_object_type_order("", nn.Conv2d, 0, None)
    explanation = fq.explain(fq.prepare_fx(build(Branch), order, (data()[0],)))
    assert {row.path for row in explanation if row.status == "float" and row.is_weighted} == {"stem"}


def test_a_call_that_the_example_did_not_show_runs_in_float_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = build(Flags)
    quantized = fq.quantize(model, [torch.rand(2, 3, 8, 8)])
    x = -torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert sqnr_db(model(x), quantized(x)) > 25
        quantized(x)
    assert len([r for r in caplog.records if "runs in float when called like this" in r.getMessage()]) == 1


class Positions(nn.Embedding):
    """Its code reads its own weight, by numbers that callers count."""

    def forward(self, size: tuple[int, int], seen: int = 0) -> Tensor:  # type: ignore[override]
        places = torch.arange(seen, seen + size[1], device=self.weight.device).expand(size)
        return super().forward(places)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.last = Positions(32, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, seen: int = 0) -> Tensor:
        y = x + self.places((x.shape[0], x.shape[1]), seen)
        return self.last(y) if y.sum() < 1e9 else y


@pytest.mark.parametrize("engine", ["reference", "onednn"])
def test_code_has_its_parameters_back_in_calls_that_the_example_did_not_show(engine: Any) -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    quantized = fq.quantize(model, [torch.rand(2, 16, 8)], engine=engine)
    with torch.no_grad():
        for given, seen in ((torch.rand(3, 6, 8), 0), (torch.rand(2, 1, 8), 6)):
            assert sqnr_db(model(given, seen), quantized(given, seen)) > 25


def test_an_arm_without_data_runs() -> None:
    model = build(Branch)
    x = next(x for x in data() if model.stem(x).sum() > 0)
    quantized = fq.quantize(model, [x])
    other = next(x for x in data() if model.stem(x).sum() < 0)
    with torch.no_grad():
        assert sqnr_db(model(other), quantized(other)) > 20
    assert any("saw no data" in row.reason for row in fq.explain(quantized))


def test_train_and_eval_reach_all_of_it() -> None:
    prepared = fq.prepare_fx(build(Branch), fq.get_default_qconfig_mapping(), (data()[0],))
    prepared.train()
    assert all(region.training for _, region in regions(prepared))
    assert not any(region.training for _, region in regions(prepared.eval()))


def test_the_way_it_was_captured_is_known() -> None:
    tree = tree_of(fq.prepare_fx(build(TryExcept), fq.get_default_qconfig_mapping(), (data()[0], False)))
    assert (tree.method, tree.num_inputs, tree.input_names) == ("piecewise", 2, ("x", "verbose"))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class TwoMlps(nn.Module):
    """A branch on data between two blocks that trace."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Mlp(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x * 1.5 if x.sum() > 0 else x)


@pytest.mark.parametrize("engine", ["reference", "onednn"])
def test_compiled_code_around_regions_runs_their_graphs(engine: Any) -> None:
    x = torch.randn(8, 16)
    quantized = fq.quantize(TwoMlps().eval(), [x], engine=engine)
    torch._dynamo.reset()
    compiled = torch.compile(quantized, backend="eager")
    with torch.no_grad():
        for inputs in (x, -x):
            torch.testing.assert_close(compiled(inputs), quantized(inputs), rtol=1e-6, atol=1e-7)


class ByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, size: tuple[int, ...], past: int = 0) -> Tensor:
        return self.table(torch.arange(past, past + size[1]))


class HandsOnSizes(nn.Module):
    """As decoders do that give `x.size()` to their embedding of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.out = ByLength(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 1e9:
            x = x / 2
        return self.out(x + self.positions(x.size()))


def test_a_size_that_code_hands_on_is_a_tuple(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model, x = HandsOnSizes().eval(), torch.randn(2, 5, 8)
    quantized = fq.quantize(model, [x])
    loaded = fq.load(fq.save(quantized, tmp_path / "m.fq"), model)
    assert torch.equal(loaded(x), quantized(x))
    assert "runs in float" not in caplog.text


class Scaled(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 2.0


class TiedThrice(nn.Module):
    """A table that nobody calls, whose weight an embedding and a linear hold, in code that does not trace."""

    def __init__(self, shared: type[nn.Embedding]) -> None:
        super().__init__()
        self.shared, self.embed, self.head = shared(16, 8), shared(16, 8), nn.Linear(8, 16, bias=False)
        self.embed.weight = self.head.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        found = self.head(self.embed(ids))
        if type(self.embed) is nn.Embedding:
            found = found.to(self.embed.weight.abs().dtype)
        return found if float(found.sum()) > 0 else -found


@pytest.mark.parametrize("shared", [nn.Embedding, Scaled])
def test_a_table_that_is_not_called_has_no_use_of_those_that_hold_its_weight(shared: type[nn.Embedding]) -> None:
    model, ids = TiedThrice(shared).eval(), torch.randint(16, (2, 5))
    quantized = fq.quantize(model, [ids] * 2, precision="int8")
    assert fq.explain(quantized).int8_share == 1
    assert not [left for left in fq.explain(quantized).left if left.weighted]
