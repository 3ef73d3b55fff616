"""Programs are taken as they are where torch has nothing to decompose, and say the same as after its decomposition."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from export.onnx.exporting import quantize
from fxquant.export.onnx import to_program
from fxquant.export.onnx.export import to_onnx

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Pools to one pixel, residuals, an activation, a view."""

    def __init__(self, side: int = 1) -> None:
        super().__init__()
        self.conv, self.again, self.pool = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(side)
        self.head = nn.Linear(3 * side * side, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.silu(self.conv(x))
        return self.head(self.pool(y + self.again(y)).view(x.shape[0], -1))


def exported(model: nn.Module) -> bytes:
    return ir.serde.serialize_model(to_onnx(model, (X,), dynamic_batch=True, caller="it")[0]).SerializeToString()


@pytest.mark.parametrize(("side", "taken"), [(1, True), (2, False)])
def test_a_program_of_translated_ops_is_not_decomposed(side: int, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = quantize(Net(side), X, effort="fast", precision="int8"), []
    look = to_program._is_translated
    monkeypatch.setattr(to_program, "_is_translated", lambda *args: asked.append(look(*args)) or asked[-1])
    found = exported(model)
    assert asked == [taken]
    monkeypatch.setattr(to_program, "_is_translated", lambda *args: False)
    assert _without_notes(found) == _without_notes(exported(model))


def _without_notes(model: bytes) -> list[tuple[object, ...]]:
    """Return the nodes and the numbers of a model, without names and the places in code that exporters write down."""
    found = ir.serde.deserialize_model(ir.serde.onnx.load_model_from_string(model))
    order = {value.name: at for at, value in enumerate((*found.graph.inputs, *found.graph.initializers.values()))}
    rows: list[tuple[object, ...]] = []
    for node in found.graph:
        order |= {value.name: len(order) + at for at, value in enumerate(node.outputs)}
        reads = [order[value.name] if value is not None else None for value in node.inputs]
        rows.append((node.op_type, *reads, *((name, str(each.value)) for name, each in node.attributes.items())))
    return [*rows, *(each.const_value.tobytes() for each in found.graph.initializers.values())]
