"""What a symbolic trace looks into, what it leaves alone, and what it runs while tracing."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.capture import capture
from fxquant.errors import CaptureError, InputError
from fxquant.graph.region import regions


def targets(model: nn.Module, **options: Any) -> list[str]:
    region = capture(model, (torch.randn(2, 4),), method="symbolic", **options)
    return [str(node.target) for node in region.graph.nodes if node.op == "call_module"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x))


class Branching(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else -x


class Model(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = Block()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


def test_leaves_by_name_and_by_class() -> None:
    model = Model(Branching()).eval()
    assert targets(model, leaf_names=["inner"]) == ["first.fc", "inner"]
    assert targets(model, leaf_classes=[Block]) == ["first", "inner"]
    with pytest.raises(CaptureError, match=r"'iner' is not in the model\. Closest: 'inner'"):
        targets(model, leaf_names=["iner"])


def test_leaves_are_kept_where_the_rest_does_not_trace() -> None:
    model = Model(Branching()).eval()
    captured = capture(model, (torch.randn(2, 4),), leaf_names=["first"])
    assert isinstance(captured.first.fc, nn.Linear)
    assert [path for path, _ in regions(captured)] == ["inner.fc"]


def test_a_region_inside_a_model_is_a_leaf() -> None:
    inner = capture(Block(), (torch.randn(2, 4),))
    assert targets(Model(inner)) == ["first.fc", "inner"]


def test_stock_modules_that_the_table_does_not_know_are_leaves() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert targets(Model(layer).eval()) == ["first.fc", "inner"]


def test_hooks_run_once() -> None:
    model = Model(Block()).eval()
    model.first.register_forward_hook(lambda module, args, out: out * 2)  # traced
    model.inner.fc.register_forward_hook(lambda module, args, out: out + 1)  # runs with the leaf
    model.register_forward_pre_hook(lambda module, args: (args[0] - 1,))  # on the root
    x = torch.randn(3, 4)
    for method in ("symbolic", "export"):
        region = capture(model, (torch.randn(2, 4),), method=method)  # type: ignore[arg-type]
        assert torch.allclose(region(x), model(x))


def test_a_forward_put_on_the_instance_is_the_one_that_is_traced() -> None:
    model = Model(Block()).eval()

    def forward(self: Model, x: Tensor) -> Tensor:
        return self.inner(x) * 3

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
    x = torch.randn(3, 4)
    for method in ("symbolic", "export"):
        region = capture(model, (torch.randn(2, 4),), method=method)  # type: ignore[arg-type]
        assert torch.equal(region(x), model(x))


def outside(x: Tensor, flag: bool) -> Tensor:
    return x + 1 if x.sum() > 0 or flag else x


torch.fx.wrap("outside")


def test_wrapped_functions_are_calls() -> None:
    class Wrapped(Block):
        def forward(self, x: Tensor) -> Tensor:
            return outside(self.fc(x), True)

    region = capture(Wrapped(), (torch.randn(2, 4),), method="symbolic")
    assert any(node.target is outside for node in region.graph.nodes)


def test_constants_made_in_forward_are_buffers() -> None:
    class Constant(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])

    for method in ("symbolic", "export"):
        model = Constant()
        region = capture(model, (torch.randn(2, 4),), method=method)  # type: ignore[arg-type]
        extra = set(region.state_dict()) - set(model.state_dict())
        assert len(extra) == 1
        assert torch.equal(region.state_dict()[extra.pop()], torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_code_may_branch_on_the_sizes_of_parameters() -> None:
    class Sizes(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if self.fc.weight.shape[0] > 2 and self.fc.weight.size(1) == 4 else x

    assert targets(Sizes()) == ["fc"]


class OnItsDevice(nn.Module):
    """As libraries write it: a part that is kept out of autocast, on whatever device the input is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(device_type=x.device.type, enabled=False):
            return self.fc(x.float())


def test_the_type_of_a_device_is_checked_and_saved(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    quantized = fq.quantize(OnItsDevice().eval(), [x], engine="reference")
    loaded = fq.load(fq.save(quantized, tmp_path / "m.fq"), engine="reference")
    assert torch.equal(loaded(x), quantized(x))
    with pytest.raises(InputError, match="'cpu' when it was captured"):
        quantized(x.to("meta"))
