"""In-place ops: out of place where that is right, left and marked where it is not."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fq
from fxquant.capture import capture
from fxquant.capture.canonical.functionalize import functionalize
from fxquant.capture.capture import Method
from fxquant.graph.region import Region
from fxquant.numerics.affine import sqnr_db
from fxquant.ops.table import OPS

both = pytest.mark.parametrize("method", ["symbolic", "export"])


class Of(nn.Module):
    def __init__(self, body: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.register_buffer("count", torch.zeros(()))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.fc(x))


def method_call(m: nn.Module, x: Tensor) -> Tensor:
    x.relu_()
    return x + 1


def operator_call(m: nn.Module, x: Tensor) -> Tensor:
    y = x
    x += 1
    x *= 2
    return x + y


def flag(m: nn.Module, x: Tensor) -> Tensor:
    F.relu(x, inplace=True)
    y = F.leaky_relu(x, 0.1, True)
    return x * y


def module_flag(m: nn.Module, x: Tensor) -> Tensor:
    m.relu(x)
    return m.relu(x - 0.5) + x


def view_not_read_again(m: nn.Module, x: Tensor) -> Tensor:
    x = x.view(-1)
    x.add_(1.0)
    return x * 2


def several(m: nn.Module, x: Tensor) -> Tensor:
    x.add_(1).mul_(2)
    x.clamp_(min=0.1).sigmoid_()
    return x.unsqueeze_(0)


def sizes(m: nn.Module, x: Tensor) -> Tensor:
    n = x.size(0)
    k = n
    n += 1
    return x.reshape(k, -1) * n


def view_turned(m: nn.Module, x: Tensor) -> Tensor:
    y = x.view(4, -1)
    y.t_()
    return y @ x.reshape(4, -1) + x.sum()


def needs_no_grad(m: nn.Module, x: Tensor) -> Tensor:
    return x.detach().requires_grad_(False) + 1


PRIVATE = [
    *(method_call, operator_call, flag, module_flag, view_not_read_again, several, sizes, view_turned, needs_no_grad),
]


def base_read_again(m: nn.Module, x: Tensor) -> Tensor:
    y = x[:, :2]
    y.add_(1.0)
    return x * 2


def view_read_again(m: nn.Module, x: Tensor) -> Tensor:
    y = x.t()
    x += 1
    return x + y.t()


def module_on_a_view(m: nn.Module, x: Tensor) -> Tensor:
    m.relu(x[:, 1:])
    return x * 2


def flag_on_a_view(m: nn.Module, x: Tensor) -> Tensor:
    F.relu(x[:, 1:], inplace=True)
    return x * 2


def assignment(m: nn.Module, x: Tensor) -> Tensor:
    x[:, 0] = 0.5
    return x + 1


def fill(m: nn.Module, x: Tensor) -> Tensor:
    x[:, 0].zero_()
    return x + 1


def copies(m: nn.Module, x: Tensor) -> Tensor:
    x[:, :2].copy_(x[:, 2:])
    return x + 1


SHARED = [base_read_again, view_read_again, module_on_a_view, flag_on_a_view, assignment, fill, copies]


def is_in_place(region: Region) -> bool:
    again = copy.deepcopy(region)
    before = [node.target for node in again.graph.nodes]
    names = [str(getattr(target, "__name__", target)) for target in before]
    return any("in_place" in name or "setitem" in name or name.split(".")[0].endswith("_") for name in names)


@both
@pytest.mark.parametrize("body", PRIVATE, ids=lambda f: f.__name__)
def test_private_memory_is_not_mutated_any_more(body: Callable[..., Tensor], method: Method) -> None:
    model = Of(body)
    region = capture(model, (torch.randn(3, 4),), method=method)
    assert not is_in_place(region)
    assert not any(node.meta.get("mutated") for node in region.graph.nodes)
    assert model.relu.inplace
    region.graph.eliminate_dead_code()
    region.recompile()
    x = torch.randn(3, 4)
    assert torch.equal(region(x), model(x))


def test_turning_a_tensor_turns_what_is_that_tensor() -> None:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        y = x.contiguous()  # x itself
        y.t_()
        return x.sum(0) + y.sum(0)

    model, x = Of(body), torch.randn(3, 4)
    region = capture(model, (x,), method="symbolic")
    assert torch.equal(region(x), model(x))


@both
@pytest.mark.parametrize("body", SHARED, ids=lambda f: f.__name__)
def test_shared_memory_is_marked_and_survives_dead_code_elimination(
    body: Callable[..., Tensor], method: Method
) -> None:
    model = Of(body)
    region = capture(model, (torch.randn(3, 4),), method=method)
    region.graph.eliminate_dead_code()
    region.recompile()
    x = torch.randn(5, 4)
    assert torch.equal(region(x), model(x))
    fc = next(node for node in region.graph.nodes if node.target == "fc")
    assert fc.meta["mutated"]
    marked = copy.deepcopy(region)
    assert next(node for node in marked.graph.nodes if node.target == "fc").meta["mutated"]


@both
def test_state_is_still_updated(method: Method) -> None:
    def counts(m: nn.Module, x: Tensor) -> Tensor:
        m.count.add_(1)
        return x * m.count

    model = Of(counts)
    region = capture(model, (torch.randn(3, 4),), method=method)
    assert model.count == 0
    region(torch.randn(3, 4))
    region(torch.randn(3, 4))
    assert region.count == 2


@both
def test_in_place_ops_keep_the_dtype_of_the_left_operand(method: Method) -> None:
    def mixed(m: nn.Module, x: Tensor) -> Tensor:
        x += torch.ones(4, dtype=torch.float64)
        return x

    assert capture(Of(mixed), (torch.randn(3, 4),), method=method)(torch.randn(2, 4)).dtype is torch.float32


@both
def test_the_input_is_left_alone(method: Method) -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    before = x.clone()
    capture(model, (x,), method=method)(x)
    assert torch.equal(x, before)


def index_copy(y: Tensor, cache: Tensor) -> Tensor:
    cache.index_copy_(1, torch.tensor([1]), y[:, None])
    return cache.mean(1)


def scatter(y: Tensor, cache: Tensor) -> Tensor:
    return cache.scatter_(1, torch.ones(3, 1, 4, dtype=torch.long), y[:, None]).mean(1)


def overwrite(y: Tensor, cache: Tensor) -> Tensor:
    cache.copy_(y[:, None].expand_as(cache))
    return y


def add_to_slice(y: Tensor, cache: Tensor) -> Tensor:
    cache[:, 1] += y
    return cache.sum(1)


def average(y: Tensor, cache: Tensor) -> Tensor:
    return cache.lerp_(y[:, None], 0.5).mean(1)


def clear(y: Tensor, cache: Tensor) -> Tensor:
    cache.zero_()
    return y + cache.mean(1)


def double(y: Tensor, cache: Tensor) -> Tensor:
    cache.mul_(2)
    return y


class Caching(nn.Module):
    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.write, self.last = nn.Linear(4, 4), write, nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        y: Tensor = self.last(self.write(self.first(x), cache))
        return y


@both
@pytest.mark.parametrize("write", [index_copy, scatter, overwrite, add_to_slice, average, clear, double])
def test_what_is_written_into_an_input_is_there(write: Callable[[Tensor, Tensor], Tensor], method: Method) -> None:
    torch.manual_seed(0)
    model, x, cache = Caching(write).eval(), torch.randn(3, 4), torch.randn(3, 2, 4)
    wanted = cache.clone()
    expected = model(x, wanted)
    mapping = fq.get_default_qconfig_mapping("x86")
    prepared = fq.prepare_fx(model, mapping, (x, cache.clone()), method=method)
    prepared(x, cache.clone())
    for engine in ("reference", "onednn"):
        found = cache.clone()
        made = fq.convert_fx(prepared, engine=engine)(x, found)
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0)
        torch.testing.assert_close(made, expected, atol=0.05, rtol=0)


def test_functionalize_does_nothing_twice() -> None:
    region = capture(Of(base_read_again), (torch.randn(3, 4),), method="symbolic")
    before = str(region.graph)
    functionalize(region, OPS)
    assert str(region.graph) == before


def test_sizes_do_not_tie_tensors_together() -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            z = torch.zeros(4, 4) + x.reshape(y.shape[0], y.size(1))
            z[:, 0] = 1.0
            return y + z

    region = capture(Sizes(), (torch.randn(4, 4),), method="symbolic")
    assert not next(node for node in region.graph.nodes if node.target == "fc").meta.get("mutated")
    x = torch.randn(4, 4)
    assert torch.equal(region(x), Sizes.forward(region, x))


class Levels(nn.Module):
    """A backbone that keeps what its in-place activations return, by name, as SSDlite's does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6(inplace=True))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> tuple[OrderedDict[str, Tensor], OrderedDict[str, Tensor]]:
        levels: OrderedDict[str, Tensor] = OrderedDict()
        levels["first"] = x = self.first(x)
        levels["second"] = self.second(x)
        return OrderedDict((name, self.head(level)) for name, level in levels.items()), levels


def test_tensors_kept_in_one_container_do_not_share_memory_by_that() -> None:
    x = torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(Levels(), [x])
    assert {row.status for row in fq.explain(quantized)} == {"int8"}
    prepared = fq.prepare_qat_fx(Levels().train(), fq.get_default_qat_qconfig_mapping("x86"), (x,))
    heads, levels = prepared(x)
    (heads["first"].sum() + levels["second"].sum()).backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())


def set_item(y: Tensor, x: Tensor) -> Tensor:
    y[:, 0] = 5
    return y


def into_zeros(y: Tensor, x: Tensor) -> Tensor:
    shifted = torch.zeros_like(y)
    shifted[:, 1:] = y[:, :-1]
    return shifted


def through_a_view(y: Tensor, x: Tensor) -> Tensor:
    y[:, :1].mul_(9)
    return y


def detached(y: Tensor, x: Tensor) -> Tensor:
    y.detach().mul_(-9)
    return y


def copied(y: Tensor, x: Tensor) -> Tensor:
    y.copy_(9 * x)
    return y


def of_the_input(y: Tensor, x: Tensor) -> Tensor:
    x[:, 0] = 5
    return x


def by_out(y: Tensor, x: Tensor) -> Tensor:
    made = torch.empty_like(y)
    torch.mul(y, 9, out=made)
    return made


def by_out_of_no_size(y: Tensor, x: Tensor) -> Tensor:
    made = y.new_empty(0)
    torch.add(y, 9 * x, out=made)
    return made


def by_out_into_itself(y: Tensor, x: Tensor) -> Tensor:
    torch.clamp(9 * x, -1, 1, out=y)
    return y


def by_two_outs(y: Tensor, x: Tensor) -> Tensor:
    values, places = y.new_empty(0), y.new_empty(0, dtype=torch.int64)
    torch.sort(9 * y, 1, out=(values, places))
    return values + places


WRITES = (
    *(set_item, into_zeros, through_a_view, detached, copied, of_the_input),
    *(by_out, by_out_of_no_size, by_out_into_itself, by_two_outs),
)


class Written(nn.Module):
    """A product reads a tensor that was written to after it was made."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.write = nn.Linear(4, 4), nn.Linear(4, 4), write

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        before = self.b(y)
        return self.b(self.write(y, x)) + before


@pytest.mark.broad
@both
@pytest.mark.parametrize("write", WRITES)
def test_products_read_what_was_written(write: Callable[[Tensor, Tensor], Tensor], method: Method) -> None:
    model, x = Written(write).eval().requires_grad_(False), torch.randn(8, 4)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping("x86"), (x.clone(),), method=method)
    prepared(x.clone())
    quantized = fq.convert_fx(prepared, engine="reference")
    assert sqnr_db(model(x.clone()), quantized(x.clone())) > 25
    assert fq.explain(quantized).int8_share >= 2 / 3  # what makes a tensor that is written to stays in float


class Router(nn.Module):
    """The shares of the best experts, made to sum to 1 in place, beside their indices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(4, 8)), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares, index = torch.topk(torch.softmax(F.linear(x, self.weight), -1), 2)
        shares /= shares.sum(-1, keepdim=True)
        return self.out(shares), index


def test_items_of_what_an_op_makes_have_memory_of_their_own() -> None:
    region = capture(Router().eval(), (torch.randn(6, 8),), method="symbolic")
    assert isinstance(region, Region)
    assert not any(node.meta.get("mutated") for node in region.graph.nodes)


class DividedSlice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x)
        part = made[:, :2]
        part /= part.sum(-1, keepdim=True)
        return self.second(made)


@both
def test_gradients_flow_through_what_is_written_to(method: Method) -> None:
    torch.manual_seed(0)
    model, x = DividedSlice().train(), torch.randn(6, 8)
    (wanted,) = torch.autograd.grad(model(x).sum(), model.first.weight)
    region = capture(model, (x,), method=method)
    (found,) = torch.autograd.grad(region(x).sum(), dict(region.named_parameters())["first.weight"])
    assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))
