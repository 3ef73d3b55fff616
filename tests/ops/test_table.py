"""Every row of the op table, in every spelling, in both captures: recognised, quantized, and close to float.

torch.export makes ATen overloads of all spellings, which takes long: it is given overloads, modules and functionals.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import fxquant as fq
from fxquant.capture import capture
from fxquant.config.rules import Rules
from fxquant.flows.decide import decide
from fxquant.graph.context import Context
from fxquant.graph.notes import Decision, decision_of, note_of
from fxquant.graph.region import Region
from fxquant.graph.run_passes import run_passes
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.ops.table import OPS, Op, OpTable, Role, activation_nodes
from fxquant.passes.annotate import annotate
from fxquant.passes.candidates import same_op
from fxquant.passes.choose import choose
from fxquant.passes.insert import insert
from ops.op_samples import SHAPES, Sample, Spelling, samples, spellings

METHODS = ("symbolic", "export")
LOWEST_SQNR = 20.0  # dB
WIDTH = 8
# torch's own functions, methods and operators, and packets of overloads, are overloads in an export: tried as such
EXPORTED = ("nn.", "F.", "aten.")
ALL = fq.Target(
    name="all",
    kinds=frozenset(OPS.by_kind),
    activation=fq.Spec(signed=False, symmetric=False, observer="minmax"),
    weight=fq.Spec(granularity="per_channel", observer="minmax"),
)
EVERYTHING = fq.QConfigMapping().set_global(ALL.qconfig)


class Case(nn.Module):
    """linear -> the op -> linear, so that the op may run in int8."""

    def __init__(self, spelling: Spelling, sample: Sample) -> None:
        super().__init__()
        self.title = spelling.name
        self.sample = sample
        self.call = sample.use if spelling.is_module else sample.call
        self.op = spelling.make(sample)
        for name, shape in sample.own.items():
            if name == "index":
                self.register_buffer(name, torch.ones(shape, dtype=torch.long))
            elif name.startswith("running"):
                self.register_buffer(name, torch.rand(shape) + 0.5)
            else:
                self.register_parameter(name, nn.Parameter(torch.randn(shape) / max((1, *shape[1:])) ** 0.5))
        self.first = nn.Identity() if sample.layout == "tokens" else nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.other.bias, 2.0)  # fit to divide by
        self.eval()
        with torch.no_grad():
            self.last = nn.Linear(self.between(example(sample.layout)).shape[-1], 4)

    def between(self, x: Tensor) -> Tensor:
        return self.call(self.op, self.first(x), self)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(x))


class Cases(nn.Module):
    """Several cases side by side: a capture costs less per model than per case."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = nn.ModuleList(cases)

    def forward(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        return [case(inputs[case.sample.layout]) for case in self.cases]


class OnInputs(nn.Module):
    """In-place ops on the user's own tensors, one for each."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = nn.ModuleList(cases)
        for case in cases:
            case.first = nn.Identity()

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return [case(x) for case, x in zip(self.cases, inputs, strict=True)]


def example(layout: str) -> Tensor:
    shape = SHAPES[layout]
    return torch.randint(0, 16, shape) if layout == "tokens" else torch.randn(shape)


def build(row: Op, method: str, *, in_place: bool = False) -> list[list[Case]]:
    """The cases of a row that a method is to capture, by spelling."""
    cases = {
        spelling: [Case(spelling, s) for s in samples(spelling) if s.exportable or method != "export"]
        for spelling in spellings(row)
        if spelling.is_in_place or not in_place
    }
    exported = [several for spelling, several in cases.items() if spelling.name.startswith(EXPORTED)]
    return exported if method == "export" and exported else list(cases.values())


def decisions(region: Region, case: int) -> list[Decision]:
    """The decisions for what stands between the first and the last op of a case."""
    path = f"cases.{case}"
    around = {f"{path}.first", f"{path}.other", f"{path}.last"}
    found = []
    for node in region.graph.nodes:
        scopes = {scope for scope, _ in node.meta.get("scope", ())}
        if path in scopes and not scopes & around and (decision := decision_of(node)) is not None:
            found.append(decision)
    return found


def problems(case: Case, kind: str, method: str, found: list[Decision]) -> list[str]:
    """What is not as the sample says."""
    sample, kinds = case.sample, {decision.kind for decision in found}
    expected = set() if sample.status == "removed" else {kind, *sample.also.split()}
    if method == "export" and sample.exported is not None:
        expected = set(sample.exported.split())
    if kinds != expected:
        return [f"it became {sorted(kinds)}, not {sorted(expected)}"]
    own = [decision for decision in found if decision.kind == kind and sample.status != "removed"]
    return [
        f"{decision.kind} is {decision.status} because {decision.reason!r}"
        for decision in own
        if decision.status != sample.status or sample.reason not in decision.reason
    ]


@pytest.mark.parametrize("row", OPS.rows, ids=lambda row: row.kind)
def test_every_spelling_has_a_sample(row: Op) -> None:
    missing = [spelling.name for spelling in spellings(row) if not samples(spelling)]
    assert not missing, f"{row.kind}: tests/ops/op_samples.py does not say how to call {missing}"


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("row", OPS.rows, ids=lambda row: row.kind)
def test_every_spelling_is_quantized(row: Op, method: str) -> None:
    cases = [case for several in build(row, method) for case in several]
    model = Cases(cases).eval()
    inputs = {layout: example(layout) for layout in sorted({case.sample.layout for case in cases})}
    with torch.no_grad():
        floats = model(inputs)
        prepared = fq.prepare_fx(model, EVERYTHING, (inputs,), target=ALL, method=method)
        observed = prepared(inputs)
        quantized = fq.convert_fx(prepared, engine="reference")(inputs)
    wrong, decided = [], decide(prepared)
    for index, case in enumerate(cases):
        found = problems(case, row.kind, method, decisions(decided, index))
        if not torch.allclose(observed[index], floats[index], rtol=1e-4, atol=1e-5):
            found.append("prepared gives other outputs")
        if not (sqnr := sqnr_db(floats[index], quantized[index])) > LOWEST_SQNR:
            found.append(f"converted has only {sqnr:.1f} dB")
        wrong.extend(f"{case.title} [{case.sample.of}]: {problem}" for problem in found)
    assert not wrong, "\n".join(wrong)


IN_PLACE = [row for row in OPS.rows if any(spelling.is_in_place for spelling in spellings(row))]


@pytest.mark.broad
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("row", IN_PLACE, ids=lambda row: row.kind)
def test_in_place_twins_leave_the_inputs_alone(row: Op, method: str) -> None:
    if method == "export" and row.kind == "squeeze":
        pytest.skip("torch.export fails where the rank of an input changes")
    cases = [several[0] for several in build(row, method, in_place=True)]
    model = OnInputs(cases).eval()
    inputs = [example(case.sample.layout) for case in cases]
    before = copy.deepcopy(inputs)

    def changed() -> list[str]:
        return [case.title for case, x, old in zip(cases, inputs, before, strict=True) if not torch.equal(x, old)]

    with torch.no_grad():
        floats = model(*copy.deepcopy(inputs))
        prepared = fq.prepare_fx(model, EVERYTHING, tuple(inputs), target=ALL, method=method)
        assert not changed(), f"prepare_fx wrote to the inputs of {changed()}"
        observed = prepared(*inputs)
        assert not changed(), f"prepared wrote to the inputs of {changed()}"
        fq.convert_fx(prepared, engine="reference")(*inputs)
        assert not changed(), f"converted wrote to the inputs of {changed()}"
    torch.testing.assert_close(observed, floats, rtol=1e-4, atol=1e-5)


def test_a_spelling_belongs_to_one_row() -> None:
    owners: dict[str, str] = {}
    for row in OPS.rows:
        for spelling in spellings(row):
            assert owners.setdefault(spelling.name, row.kind) == row.kind, spelling.name
    assert len(OPS.by_kind) == len(OPS.rows)


def test_an_in_place_spelling_has_a_twin_in_its_row() -> None:
    for row in OPS.rows:
        in_place = [f for f in (*row.functions, *row.methods) if str(getattr(f, "__name__", f)).endswith("_")]
        packets = (getattr(torch.ops.aten, name) for name in row.aten if name.endswith("_"))
        overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
        for spelling in (*in_place, *overloads):
            if str(spelling).startswith("__") or getattr(spelling, "_overloadname", "") == "t":
                continue  # __add__ is not in-place, and .t is TorchScript's for lists
            twin = OPS.out_of_place(spelling)
            assert twin is not None and OPS.of(twin) is row, spelling


class Around(nn.Module):
    """linear -> an op -> linear, and the op's result as an output."""

    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.op, self.last = nn.Linear(WIDTH, WIDTH), op, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.op(self.first(x))
        return self.last(y), y


def find(region: Region, target: object) -> fx.Node:
    def is_it(node: fx.Node) -> bool:
        return node.target == target or getattr(node.target, "overloadpacket", None) == target

    return next(node for node in region.graph.nodes if is_it(node))


@pytest.mark.parametrize(
    ("op", "symbolic", "exported"),
    [
        (torch.neg, torch.neg, torch.ops.aten.neg),
        (operator.neg, operator.neg, torch.ops.aten.neg),
        (lambda x: x.exp(), "exp", torch.ops.aten.exp),
        (lambda x: F.log_softmax(x, -1), F.log_softmax, torch.ops.aten.log_softmax),
        (nn.LogSoftmax(-1), "op", torch.ops.aten.log_softmax),
        (nn.Hardshrink(), "op", torch.ops.aten.hardshrink),
    ],
    ids=("torch", "operator", "method", "functional", "log_softmax", "hardshrink"),
)
@pytest.mark.parametrize("method", METHODS)
def test_an_op_outside_the_table_is_float_and_not_observed(
    op: Callable[[Tensor], Tensor], symbolic: object, exported: object, method: str
) -> None:
    region = decide(fq.prepare_fx(Around(op).eval(), EVERYTHING, (example("rows"),), target=ALL, method=method))
    node = find(region, symbolic if method == "symbolic" else exported)
    decision = decision_of(node)
    assert decision is not None and decision.status == "float"
    assert decision.reason == "not in the op table"
    assert note_of(node) is None

    def is_observer(other: fx.Node) -> bool:
        return other.op == "call_module" and isinstance(region.get_submodule(str(other.target)), FakeQuant)

    assert not any(map(is_observer, node.all_input_nodes))
    observers = [user for user in node.users if is_observer(user)]
    readers = [user.target for observer in observers for user in observer.users]
    assert readers in (["last"], ["quantizers.last_mean", "last"], ["last", "quantizers.last_mean"])  # what `last` asks


def extended(*rows: Op) -> tuple[OpTable, Callable[[nn.Module, str], Region]]:
    """A table with more rows, and the flow up to prepared with it."""
    table = OpTable((*OPS.rows, *rows))

    def prepare(model: nn.Module, method: str) -> Region:
        region = capture(model.eval(), (example("rows"),), method=method, ops=table)
        rules = Rules(EVERYTHING, lambda a, b: same_op(table, a, b))
        assert isinstance(region, Region)
        run_passes(region, (choose, annotate, insert), Context(rules=rules, target=ALL, ops=table))
        return region

    return table, prepare


@pytest.mark.parametrize("method", METHODS)
def test_a_row_by_argument_is_recognised(method: str) -> None:
    row = Op(
        kind="gelu", role=Role.OWN_RANGE, modules=(nn.Hardshrink,), functions=(F.hardshrink,), aten=("hardshrink",)
    )
    table, prepare = extended(row)
    assert OPS.of(F.hardshrink) is None and table.of(F.hardshrink) is row
    assert table.of(F.gelu) is OPS.by_kind["gelu"]  # the rows before it keep their spellings
    for op in (F.hardshrink, nn.Hardshrink(), torch.ops.aten.hardshrink.default):
        region = prepare(Around(op), method)
        found = [d for node in region.graph.nodes if (d := decision_of(node)) is not None and d.kind == "gelu"]
        assert [decision.status for decision in found] == ["int8"]


def test_a_later_row_wins_a_spelling() -> None:
    table, _ = extended(Op(kind="relu", role=Role.FLOAT, methods=("relu",)))
    assert table.of("relu") is not OPS.of("relu")
    assert table.of(F.relu) is OPS.of(F.relu)


def test_a_subclass_of_a_stock_module_has_its_row() -> None:
    class Mine(nn.ReLU):
        pass

    assert OPS.of(Mine) is OPS.of(nn.ReLU)
    assert OPS.of(nn.Module) is None
    assert OPS.of([]) is None  # unhashable, so no op of ours
    assert OPS.of(torch.ops.quantized.linear) is None


def test_operands_are_found_by_position_and_by_name() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    for node in (
        graph.call_function(torch.add, (x, y)),
        graph.call_function(torch.add, (x,), {"other": y}),
        graph.call_function(torch.bmm, (), {"input": x, "mat2": y}),
        graph.call_function(torch.ops.aten.bmm.default, (), {"self": x, "mat2": y}),
        graph.call_function(torch.cat, ([x, y], 1)),
        graph.call_function(torch.cat, (), {"tensors": (x, y)}),
        graph.call_function(torch.baddbmm, (1.0,), {"batch1": x, "batch2": y}),
        graph.call_function(torch.einsum, ("ij,jk->ik", x, y)),
        graph.call_function(torch.einsum, ("ij,jk->ik", [x, y])),
    ):
        op = OPS.of(node.target)
        assert op is not None
        assert activation_nodes(node, op) == [x, y], node.format_node()
    scalar = graph.call_function(operator.add, (10, x))
    assert activation_nodes(scalar, OPS.by_kind["add"]) == [x]
