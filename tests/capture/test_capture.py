"""Standing properties of a capture, over the zoo and both methods."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from fxquant.capture import capture
from fxquant.capture.capture import Method
from fxquant.capture.run_untraced import difference
from fxquant.errors import CaptureError
from fxquant.graph.encode import META_KEYS
from fxquant.graph.nodes import TensorInfo
from fxquant.graph.region import Region, origin_of, preparation_of
from fxquant.ops.table import OPS
from zoo import ZOO

METHODS: tuple[Method, ...] = ("symbolic", "export")
STATEFUL = ("conv", "linear", "embedding", "norm", "dropout", "prelu")


def kinds(region: Region) -> list[tuple[str, str]]:
    """Kind and, where it has state, path of every op of the table that works on tensors."""
    found = []
    for node in region.graph.nodes:
        op = OPS.of_node(node, region)
        if op is None or node.meta.get("tensor") is None:
            continue
        if node.target is operator.getitem and not isinstance(node.args[0].meta.get("tensor"), TensorInfo):
            continue
        found.append((op.kind, str(node.target) if any(part in op.kind for part in STATEFUL) else ""))
    return found


@functools.cache
def captured(name: str, method: Method) -> Region:
    """For tests that only look."""
    entry = ZOO[name]
    return capture(entry.build(), entry.inputs(), entry.kwargs(), method=method)


def batched(inputs: Any, count: int) -> Any:
    def resize(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf[:count] if count <= len(leaf) else torch.cat([leaf, leaf])[:count]

    return pytree.tree_map(resize, inputs)


@pytest.mark.broad
@pytest.mark.parametrize("name", ZOO)
def test_both_methods_give_the_same_kinds_paths_and_keys(name: str) -> None:
    entry = ZOO[name]
    one, two = (captured(name, method) for method in METHODS)
    assert kinds(one) == kinds(two)
    assert set(one.state_dict()) == set(two.state_dict())
    if not name.startswith("functional_"):
        assert list(one.state_dict()) == list(entry.build().state_dict())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_outputs_at_other_batch_sizes(name: str, method: Method) -> None:
    entry = ZOO[name]
    model = entry.build()
    region = captured(name, method)
    for count in (1, 2, 3):
        args, kwargs = batched(entry.inputs(), count), batched(entry.kwargs(), count)
        with torch.no_grad():
            assert difference(region(*args, **kwargs), model(*args, **kwargs)) is None


@pytest.mark.broad
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_a_batch_of_one_does_not_fix_the_batch(name: str, method: Method) -> None:
    entry = ZOO[name]
    model = entry.build()
    region = capture(model, batched(entry.inputs(), 1), batched(entry.kwargs(), 1), method=method)
    with torch.no_grad():
        args, kwargs = batched(entry.inputs(), 3), batched(entry.kwargs(), 3)
        assert difference(region(*args, **kwargs), model(*args, **kwargs)) is None


@pytest.mark.broad
@pytest.mark.parametrize("mode", [True, False], ids=["captured_in_train", "captured_in_eval"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_the_model_is_not_changed_and_the_region_switches_between_modes(name: str, method: Method, mode: bool) -> None:
    entry = ZOO[name]
    model = entry.build().train(mode)
    before = describe(model)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    region = capture(model, entry.inputs(), entry.kwargs(), method=method)
    assert describe(model) == before
    assert all(torch.equal(value, values[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    storages = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert {parameter.data_ptr() for parameter in region.parameters()} <= storages
    assert region.training is mode
    if name != "functional_conv":  # which says training=False
        check_modes(region, copy.deepcopy(model), entry.inputs(), entry.kwargs())


def check_modes(region: Region, model: nn.Module, args: Any, kwargs: Any) -> None:
    """The region does in each mode what the model does, which has tensors of its own."""
    for training in (True, True, False):
        outputs = []
        for each in (model, region):
            each.train(training)
            torch.manual_seed(0)
            with torch.no_grad():
                outputs.append(each(*args, **kwargs))
        assert difference(outputs[1], outputs[0]) is None
    for key, value in model.state_dict().items():
        assert torch.equal(region.state_dict().get(key, value), value), key


def describe(model: nn.Module) -> list[Any]:
    return [
        (path, type(m), id(m), m.training, getattr(m, "inplace", None), len(m._forward_hooks), sorted(m.__dict__))
        for path, m in model.named_modules()
    ] + [(key, id(tensor)) for key, tensor in model.state_dict(keep_vars=True).items()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_meta_is_plain_and_survives_copies(name: str, method: Method) -> None:
    entry = ZOO[name]
    region = captured(name, method)
    for again in (region, copy.deepcopy(region), pickle.loads(pickle.dumps(region))):
        args, kwargs = entry.inputs(), entry.kwargs()
        with torch.no_grad():
            assert difference(again(*args, **kwargs), region(*args, **kwargs)) is None
        for one, two in zip(again.graph.nodes, region.graph.nodes, strict=True):
            assert one.meta == two.meta
            assert set(one.meta) <= set(META_KEYS)
            assert one.meta["scope"][0][0] == ""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_scope_and_line_are_known_for_every_op(name: str, method: Method) -> None:
    region = captured(name, method)
    paths = {path for path, _ in region.named_modules()}
    for node in region.graph.nodes:
        if OPS.of_node(node, region) is not None and node.meta["tensor"] is not None:
            assert {path for path, _ in node.meta["scope"]} <= paths
            if node.op == "call_module":
                assert node.meta["scope"][-1][0] == node.target
            assert "zoo.py:" in node.meta["where"] or node.target is operator.getitem, node.format_node()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_names_order_and_defaults_of_forward_stay(name: str, method: Method) -> None:
    entry = ZOO[name]
    model = entry.build()
    region = captured(name, method)

    def parameters(module: nn.Module) -> list[tuple[str, Any]]:
        return [(p.name, p.default) for p in inspect.signature(module.forward).parameters.values()]

    assert parameters(region) == parameters(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_other_dtypes(method: Method, dtype: torch.dtype) -> None:
    entry = ZOO["resnet"]
    model = entry.build().to(dtype)
    region = capture(model, tuple(x.to(dtype) for x in entry.inputs()), method=method)
    assert {p.dtype for p in region.parameters()} == {dtype}


@pytest.mark.parametrize("method", METHODS)
def test_attributes_and_methods_stay(method: Method) -> None:
    entry = ZOO["with_attributes"]
    region: Any = capture(entry.build(), entry.inputs(), method=method)
    model: Any = entry.build()
    assert region.labels == model.labels
    assert region.num_classes == model.num_classes
    assert region.task == model.task
    assert type(region).__name__ == "WithAttributes"


def test_without_an_example_nothing_is_known_of_tensors() -> None:
    region = capture(ZOO["resnet"].build(), None, method="symbolic")
    assert all("tensor" not in node.meta for node in region.graph.nodes)
    with pytest.raises(CaptureError, match="example inputs"):
        capture(ZOO["resnet"].build(), None, method="export")


def test_a_region_is_captured_again_without_sharing_its_graph() -> None:
    entry = ZOO["resnet"]
    first = capture(entry.build(), None, method="symbolic")
    again = capture(first, entry.inputs())
    assert again is not first
    assert again.graph is not first.graph
    assert preparation_of(again) is not preparation_of(first)
    assert all("tensor" in node.meta for node in again.graph.nodes)
    assert all("tensor" not in node.meta for node in first.graph.nodes)


class Stateful(nn.Module):
    """Hides state where no trace can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = [1.0]

    def forward(self, x: Tensor) -> Tensor:
        self.scale[0] += 1.0
        return x * self.scale[0]


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), Branch())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_a_wrong_graph_is_an_error() -> None:
    with pytest.raises(CaptureError, match=r"a call changes the attribute 'scale'"):
        capture(Stateful(), (torch.ones(2, 2),), method="symbolic")


@pytest.mark.parametrize(("method", "said"), [("symbolic", "symbolic trace:"), ("export", "torch.export:")])
def test_an_untraceable_model_names_line_module_and_remedy(method: str, said: str) -> None:
    line = inspect.getsourcelines(Branch.forward)[1] + 1
    with pytest.raises(CaptureError) as caught:
        capture(Outer(), (torch.ones(2, 4),), method=method)
    message = str(caught.value)
    assert f"test_capture.py:{line} in forward of module 'inner.1' (Branch)" in message
    assert said in message
    assert "mark module 'inner.1' as non-traceable" in message


def test_auto_falls_back_to_export() -> None:
    class Assigns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.total = self.total + 1
            return x + self.total

    region = capture(Assigns(), (torch.ones(2, 4),))
    assert origin_of(region).method == "export"
    assert isinstance(region, fx.GraphModule)


def test_example_inputs_that_do_not_fit() -> None:
    with pytest.raises(CaptureError, match=r"do not fit Plain\.forward"):
        capture(ZOO["plain"].build(), (1, 2, 3))
    with pytest.raises(CaptureError, match="method 'magic'"):
        capture(ZOO["plain"].build(), ZOO["plain"].inputs(), method="magic")  # type: ignore[arg-type]


def test_a_batch_of_one_in_train_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    for method in METHODS:
        region = capture(model, (torch.ones(1, 4),), method=method)
        assert region.training
        assert all(module.training for module in region.modules())
