"""What a model returns, and what the code inside it sees, lies in memory as in the float model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxquant as fq
from fxquant.numerics.affine import sqnr_db
from fxquant.ops.table import OPS
from ops.op_samples import SHAPES, samples, spellings
from ops.test_table import Case
from zoo import ZOO, build

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def last(x: Any) -> Any:
    """The same values with channels last, for pictures and volumes."""
    return x.to(memory_format=FORMATS[x.dim()]) if isinstance(x, Tensor) and x.dim() in FORMATS else x


def across(x: Any) -> Any:
    """The same values with the last two dimensions swapped in memory."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if isinstance(x, Tensor) and x.dim() > 1 else x


def sparse(x: Any) -> Any:
    """The same values, every second element of a larger tensor."""
    return torch.stack((x, x), -1)[..., 0] if isinstance(x, Tensor) else x


def lies(result: Any) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def lies_in_memory(result: Any) -> list[tuple[int, ...]]:
    """The same but for axes of one element, on which no address depends."""
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return [tuple(step for step, size in zip(leaf.stride(), leaf.shape, strict=True) if size > 1) for leaf in leaves]


def engines(
    model: nn.Module, args: Any, kwargs: Any = None, engine: str | None = None, **settings: Any
) -> tuple[nn.Module, nn.Module]:
    """The model on the reference engine and on another, or on the default one."""
    prepared = fq.prepare_fx(
        model, fq.get_default_qconfig_mapping("x86"), args, example_kwargs=kwargs or {}, **settings
    )
    with torch.no_grad():
        prepared(*args, **(kwargs or {}))
    return fq.convert_fx(prepared, engine="reference"), fq.convert_fx(prepared, engine=engine)


@torch.no_grad()
def compare(reference: nn.Module, lowered: nn.Module, args: Any, kwargs: Any = None) -> None:
    """The strides are the same each time: by Python, as a run is kept, and from then on."""
    kwargs = kwargs or {}
    expected = reference(*args, **kwargs)
    for _ in range(4):
        assert lies(lowered(*args, **kwargs)) == lies(expected)


@pytest.mark.broad
@pytest.mark.parametrize("name", ZOO)
def test_outputs_lie_as_in_the_float_model(name: str) -> None:
    model, args, kwargs = build(name)
    reference, lowered = engines(model, args, kwargs)
    for change in (lambda x: x, last, across, sparse):
        given, named = pytree.tree_map(change, (args, kwargs))
        compare(reference, lowered, given, named)
        with torch.no_grad():
            assert lies(reference(*given, **named)) == lies(model(*given, **named))


CONVOLUTIONS: dict[str, Callable[..., nn.Module]] = {"signal": nn.Conv1d, "image": nn.Conv2d, "volume": nn.Conv3d}


class AfterConvolutions(nn.Module):
    """convolution -> an op, for each spelling of a row; the results of all are seen."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        for case in cases:
            convolution = CONVOLUTIONS[case.sample.layout]
            case.first, case.other, case.last = convolution(4, 4, 1), convolution(4, 4, 1), nn.Identity()
            nn.init.constant_(case.other.bias, 2.0)
        self.cases = nn.ModuleList(cases)

    def forward(self, inputs: dict[str, Tensor]) -> list[Any]:
        return [case.between(inputs[case.sample.layout]) for case in self.cases]


@pytest.mark.broad
@pytest.mark.parametrize("engine", ["onednn", "native"])
@pytest.mark.parametrize("kind", OPS.by_kind)
def test_every_op_sees_the_float_layout(kind: str, engine: str) -> None:
    if engine == "native":
        pytest.importorskip("llvmlite")
    look = lies if engine == "onednn" else lies_in_memory
    torch.manual_seed(0)
    found = [
        spelling for spelling in spellings(OPS.by_kind[kind]) if spelling.name.split(".")[0] in ("nn", "F", "torch")
    ]
    cases = [Case(spelling, s) for spelling in found if not spelling.is_in_place for s in samples(spelling)]
    cases = [case for case in cases if case.sample.layout in CONVOLUTIONS]
    if not cases:
        pytest.skip("it takes no pictures")
    model = AfterConvolutions(cases).eval()
    inputs = {name: torch.randn(SHAPES[name]) for name in CONVOLUTIONS}
    reference, lowered = engines(model, (inputs,), engine=engine, method="symbolic")
    for given in (inputs, pytree.tree_map(last, inputs)):
        with torch.no_grad():
            try:
                expected = reference(given)
            except RuntimeError:  # a view that cannot be
                with pytest.raises(RuntimeError):
                    lowered(given)
                continue
            actual = lowered(given)
        wrong = {
            case.title: (lies(a), lies(b))
            for case, a, b in zip(cases, expected, actual, strict=True)
            if look(a) != look(b)
        }
        assert not wrong
        for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
            assert torch.allclose(a, b, atol=0.05)


class Seen(nn.Module):
    """Code that looks at the strides of what a convolution made, in every place where it can."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 1)
        self.pool = nn.MaxPool2d(2)
        self.gate = nn.SiLU()
        self.inner = Strides()
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> list[Any]:
        x = F.relu(self.first(x))
        y = self.pool(F.relu(x + self.second(x)))
        a, b = y.chunk(2, 1)
        joined = torch.cat((self.third(a), b), 1)
        raised = F.interpolate(joined, scale_factor=2.0)
        seen = strides_of(self.gate(raised))
        flat = y.reshape(y.size(0), -1)
        rows = torch.as_strided(y, (2, 4), (4, 1))
        shuffled = y.unflatten(1, (2, 4)).transpose(1, 2)
        return [self.head(flat), rows, shuffled, b, y.mean((2, 3)), F.adaptive_avg_pool2d(y, 1), seen, self.inner(y)]


class Strides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:  # not to be traced
            return x
        return torch.tensor(x.stride())


@fq.wrap
def strides_of(x: Tensor) -> Tensor:
    return torch.tensor(x.stride())


@pytest.mark.broad
@pytest.mark.parametrize("change", [lambda x: x, last, across, sparse], ids=("plain", "last", "across", "sparse"))
@pytest.mark.parametrize("moved", [False, True], ids=("contiguous", "channels_last"))
@pytest.mark.parametrize("method", ["auto", "piecewise"])
def test_code_sees_the_float_layout(change: Callable[[Any], Any], moved: bool, method: Any) -> None:
    torch.manual_seed(0)
    model = Seen().eval()
    if moved:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 8, 8)
    reference, lowered = engines(model, (x,), method=method)
    with torch.no_grad():
        for _ in range(4):
            actual, expected, wanted = lowered(change(x)), reference(change(x)), model(change(x))
            assert lies(actual) == lies(expected) == lies(wanted)
            assert torch.equal(actual[6], wanted[6]) and torch.equal(actual[7], wanted[7])
            for a, b in zip(actual[:6], expected[:6], strict=True):
                assert torch.allclose(a, b, atol=0.05)


def test_a_view_after_a_convolution() -> None:
    class LeNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.c(x))
            return x.view(x.size(0), -1)

    model, x = LeNet().eval(), torch.randn(2, 3, 8, 8)
    compare(*engines(model, (x,)), (x,))


def test_a_moved_model_lies_as_a_moved_float_one() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    reference, lowered = engines(model, (x,))
    compare(reference, lowered, (x,))
    for each in (model, reference, lowered):
        each.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    compare(reference, lowered, (x,))
    with torch.no_grad():
        assert lies(lowered(x)) == lies(model(x)) == [(288, 1, 48, 8)]
    compare(reference, lowered, (x[0],))


def test_hooks_on_a_region_see_the_float_layout() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    _, lowered = engines(model, (x,))
    seen = []
    lowered.register_forward_hook(lambda module, args, output: seen.append(output.stride()))
    with torch.no_grad():
        for given in (x, last(x)):
            lowered(given)
    assert seen == [(288, 36, 6, 1), (288, 1, 48, 8)]


class Parts(nn.Module):
    """Gives parts of a tensor, and a tensor more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        first, second = y.chunk(2, 1)
        return (
            y,
            y[:, :1],
            y[..., ::2],
            y[:, 0],
            y.expand(2, *y.shape),
            first,
            second.flatten(2),
            y[:, 1:].transpose(1, 2),
        )


def test_parts_of_a_tensor_lie_in_it() -> None:
    x = torch.randn(2, 3, 8, 8)
    reference, lowered = engines(Parts().eval(), (x,))
    for given in (x, x[:1], across(x)):
        compare(reference, lowered, (given,))


class ByNumber(nn.Module):
    """Multiplies by numbers that its code asks a tensor for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y * y.is_contiguous() + (x.storage_offset() + y) * x.shape[0]


@pytest.mark.parametrize("lay", [torch.clone, last], ids=["contiguous", "channels_last"])
def test_numbers_among_operands_have_no_layout(lay: Callable[[Tensor], Tensor]) -> None:
    model, x = ByNumber().eval(), torch.randn(2, 3, 6, 6)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantized, given = fq.convert_fx(prepared, engine="onednn"), lay(x)
    with torch.no_grad():
        ours, theirs = quantized(given), model(given)
    assert ours.stride() == theirs.stride()
    assert sqnr_db(theirs, ours) > 25


@pytest.mark.parametrize("engine", ["reference", "native", "onnxruntime", "openvino"])
def test_a_result_that_is_expanded(engine: str) -> None:
    """A deviation that is the same for all samples, beside a mean, as policies give it."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_std = nn.Linear(8, 4), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean = self.mean(x)
            return mean, self.log_std.exp().expand_as(mean)

    if engine in ("onnxruntime", "openvino"):
        pytest.importorskip(engine)
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model, x = Policy().eval(), torch.randn(16, 8)
    quantized = fq.quantize(model, [x], engine=engine)
    for rows in (16, 3):
        found, wanted = quantized(x[:rows]), model(x[:rows])
        assert lies(found) == lies(wanted)
        torch.testing.assert_close(found[1], wanted[1])
