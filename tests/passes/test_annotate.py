"""What is quantized, what is grouped, what stays float and why."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.flows.decide import decide
from fxquant.graph.notes import note_of
from fxquant.graph.region import Region
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant

X = (2, 4, 8, 8)


def prepare(model: nn.Module, mapping: object = None, shape: tuple[int, ...] = X, **kwargs: object) -> Region:
    torch.manual_seed(0)
    mapping = mapping if mapping is not None else fq.get_default_qconfig_mapping()
    return fq.prepare_fx(model.eval(), mapping, (torch.randn(shape),), **kwargs)


def status(region: nn.Module) -> dict[str, str]:
    return {row.node: row.status for row in fq.explain(region)}


def row(region: nn.Module, node: str):
    return next(row for row in fq.explain(region) if row.node == node)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(F.relu(self.b(x) + x))


def test_conv_add_relu_is_one_group() -> None:
    prepared = decide(prepare(Residual()))
    notes = {node.name: note_of(node) for node in prepared.graph.nodes if note_of(node) is not None}
    assert notes["b"].group == notes["add"].group == notes["relu"].group == "b"
    assert notes["b"].output is None
    assert notes["add"].output is None
    assert notes["relu"].output == "relu"
    assert notes["add"].inputs == (None, "a")
    assert notes["a"].output == "a"


def test_of_two_convs_into_an_add_the_later_takes_it() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(x) + self.b(x))

    prepared = prepare(Two())
    assert row(prepared, "add").group == "b"
    assert row(prepared, "a").output == "a"


def test_nothing_is_quantized_for_the_sake_of_the_model_output() -> None:
    prepared = prepare(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))
    assert row(prepared, "_1").output is None
    assert len([module for module in decide(prepared).modules() if isinstance(module, FakeQuant)]) == 1


def test_a_residual_stream_into_a_norm_stays_float() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.fc(self.norm(x))
            return x + self.fc(self.norm(x))

    prepared = prepare(Block(), shape=(2, 3, 8))
    found = status(prepared)
    assert found["add"] == found["add_1"] == "float"
    assert found["fc"] == found["fc_1"] == "int8"
    assert row(prepared, "fc").inputs != row(prepared, "fc_1").inputs, "each call has its own range"
    assert "no int8 kernel for layer_norm" in row(prepared, "norm").reason


def test_cat_puts_its_inputs_on_one_grid() -> None:
    class Cat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.cat([self.a(x), self.b(x) * 3], 1))

    prepared = prepare(Cat())
    cat = row(prepared, "cat")
    assert len({*cat.inputs, cat.output}) == 1
    assert row(prepared, "mul").output == cat.output


def test_fixed_range_of_sigmoid() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(x) * torch.sigmoid(self.b(x)))

    quantized = fq.quantize(Gate(), [torch.randn(X)], engine="reference", target="x86-vnni")
    dq = next(node for node in quantized.graph.nodes if node.name == "sigmoid_dq")
    assert dq.args[1:3] == (pytest.approx(1 / 255), 0)


@pytest.mark.parametrize("rule", ["name", "regex", "type", "setter"])
def test_none_leaves_a_module_in_float(rule: str) -> None:
    base = fq.get_default_qconfig_mapping()
    mapping = {
        "name": base.set_module_name("b", None) if rule == "name" else None,
        "regex": base.set_module_name_regex("b$", None) if rule == "regex" else None,
        "type": base.set_module_name_object_type_order("", nn.Conv2d, 1, None) if rule == "type" else None,
        "setter": lambda name, kind, op: "float" if name == "b" else fq.default_qconfig,
    }[rule]
    prepared = prepare(Residual(), mapping)
    assert status(prepared)["b"] == "float"
    assert status(prepared)["a"] == status(prepared)["c"] == "int8"
    assert "rule leaves it in float" in row(prepared, "b").reason


def test_one_operand_can_be_exempted_while_the_weight_stays_int8() -> None:
    exempt = fq.QConfig(activation=fq.default_qconfig.activation, weight=fq.default_qconfig.weight, input="float")
    prepared = prepare(Residual(), fq.get_default_qconfig_mapping().set_module_name("c", exempt))
    assert row(prepared, "c").inputs == (None,)
    assert row(prepared, "relu").output is None, "nobody else takes it"
    prepared(torch.randn(X))
    converted = fq.convert_fx(prepared)
    assert converted.get_buffer("c.weight").dtype == torch.int8


def test_exempting_one_operand_of_an_add() -> None:
    exempt = fq.default_qconfig.__class__(
        activation=fq.default_qconfig.activation, weight=fq.default_qconfig.weight, input={1: "float"}
    )
    prepared = prepare(Residual(), fq.get_default_qconfig_mapping().set_object_type("add", exempt))
    assert row(prepared, "add").inputs == ("b", None)


def test_unmatched_rules_are_errors_or_warnings() -> None:
    mapping = fq.get_default_qconfig_mapping().set_module_name("bb", None)
    with pytest.raises(fq.ConfigError, match=r"module_name='bb'\) matches no module"):
        prepare(Residual(), mapping)
    with pytest.warns(UserWarning, match="matches no module"):
        prepare(Residual(), mapping, strict=False)


def test_integer_tensors_are_never_observed() -> None:
    class Index(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.fc = nn.Embedding(10, 8), nn.Linear(8, 4)

        def forward(self, ids: Tensor) -> Tensor:
            mask = (ids + 1) * 2 > 3
            return self.fc(self.embed(ids + 1) * mask.unsqueeze(-1))

    prepared = fq.prepare_fx(Index().eval(), fq.get_default_qconfig_mapping(), (torch.randint(0, 9, (2, 5)),))
    assert status(prepared) == {"embed": "weight_only", "mul_1": "float", "fc": "int8"}
    assert "operand unsqueeze is bool" in row(prepared, "mul_1").reason


@pytest.mark.parametrize("fill", [float("-inf"), torch.finfo(torch.float32).min], ids=["inf", "lowest"])
def test_additive_masks_stay_out_of_the_ranges(fill: float) -> None:
    """A target with an int8 add may want to quantize masked scores: they stay float, and the Decision says so."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.b(torch.clamp(self.a(x) + mask, min=-3.0))

    mask = torch.zeros(4, 8)
    mask[:, 3] = fill
    model = Masked().eval()
    x = torch.randn(4, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x, mask))
    fq.calibrate(prepared, [(x, mask)])
    converted = fq.convert_fx(prepared, engine="reference")
    assert "additive mask" in row(converted, "add").reason
    torch.testing.assert_close(converted(x, mask), model(x, mask), atol=0.1, rtol=0.1)


class Patches(nn.Module):
    """A convolution before a layer norm, linears, and a convolution at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.fc = nn.Conv2d(4, 8, 2, 2), nn.LayerNorm(8), nn.Linear(8, 8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.patches(x)).permute(0, 2, 3, 1)
        return self.head(F.relu(self.fc(self.norm(x))).permute(0, 3, 1, 2))


def test_a_kernel_that_writes_integers_only_rounds_for_float_ops_too() -> None:
    """Not in the last layers, and not where a rule keeps the ops behind it in float."""

    def rounded(target: str, mapping: fq.QConfigMapping) -> set[str | None]:
        prepared = decide(prepare(Patches(), mapping, target=target), engine="reference")
        return {note.output for node in prepared.graph.nodes if (note := note_of(node)) is not None} - {None}

    everything = fq.get_default_qconfig_mapping("onnxruntime")
    assert "relu" not in rounded("openvino", fq.get_default_qconfig_mapping("openvino"))
    assert {"relu"} <= rounded("onnxruntime", everything)
    assert "head" not in rounded("onnxruntime", everything)
    in_float = fq.get_default_qconfig_mapping("onnxruntime").set_object_type(torch.permute, None)
    in_float.set_object_type("permute", None)
    assert "relu" not in rounded("onnxruntime", in_float)


def test_a_tensor_that_is_rounded_for_float_ops_is_lifted_where_it_hurts() -> None:
    """One channel is far wider than the others, and the layer norm of each pixel sees them all."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.norm = nn.Conv2d(3, 16, 2, 2), nn.BatchNorm2d(16, affine=False)
            self.mix, self.fc = nn.LayerNorm(16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.patches(x) / self.wide[:, None, None])
            return self.fc(self.mix(x.permute(0, 2, 3, 1)))

    torch.manual_seed(0)
    model = Wide().eval()
    model.wide = 30 ** (torch.arange(16) / 5)
    with torch.no_grad():
        model.patches.weight.mul_(model.wide[:, None, None, None])
        model.patches.bias.mul_(model.wide)
    data = [torch.randn(8, 3, 16, 16) for _ in range(4)]
    quantized = fq.quantize(model, data, target="onnxruntime", engine="reference")
    patches = next(row for row in fq.explain(quantized) if row.path == "patches")
    assert patches.status == "weight_only" and "of the noise at the outputs" in patches.reason
    assert sqnr_db(model(data[0]), quantized(data[0])) > 30
