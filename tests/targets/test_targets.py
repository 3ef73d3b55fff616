"""Targets as data: names, files, what they refuse; and that no graph has anything that its target forbids."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fxquant as fq
from fxquant.cli import app
from fxquant.config.target import bias_form
from fxquant.insight.forecast import placed
from fxquant.tables.check_target import check_target
from fxquant.targets import TARGETS, by_name
from fxquant.targets.file import from_plain
from zoo import ZOO

CHECKED = sorted(set(TARGETS) - {"x86", "x86-amx", "fbgemm", "onednn", "tflite-16x8"})  # others in other words


MODELS = (
    *("plain", "resnet", "mobilenet", "squeeze_excite", "densenet", "functional_mlp", "linear_batch_norm", "unet"),
    *("conv1d", "split_chunk_stack", "vision_transformer", "activations"),
)


def quantized(model: nn.Module, args: tuple[Any, ...], target: fq.Target, qconfig: Any = None) -> nn.Module:
    prepared = fq.prepare_fx(model.eval(), {"": qconfig or target.qconfig}, args, target=target, algorithms=())
    before = {row.node: (row.on_device, row.rule) for row in placed(fq.explain(prepared))}
    made = fq.convert_fx(fq.calibrate(prepared, [args]), engine="reference")
    # what was forecast is what conversion did
    assert {row.node: (row.on_device, row.rule) for row in placed(fq.explain(made))} == before
    return made


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore:nothing in")
@pytest.mark.parametrize("name", CHECKED)
def test_no_graph_has_what_its_target_forbids(name: str) -> None:
    target = by_name(name)
    int8 = 0
    for model in MODELS:
        entry = ZOO[model]
        made = quantized(entry.build(), entry.inputs(), target)
        assert [str(each) for each in check_target(made, target)] == []
        int8 += fq.explain(made).counts().get("int8", 0)
    assert int8 > len(target.kinds)


class Everything(nn.Module):
    """A bit of all that rules are about."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 1)
        self.pool, self.act, self.fc = nn.AvgPool2d(3), nn.SiLU(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        x = self.b(x) + x
        x = self.pool(x * torch.sigmoid(x))
        return self.fc(self.act(x * x).mean((2, 3)))


_COARSE = fq.Grids(symmetric=True)


BREAKS: dict[str, dict[str, Any]] = {
    "kinds": {"kinds": by_name("x86-vnni").kinds - {"linear"}},
    "split": {"split": frozenset(("silu",))},
    "rewrites": {"rewrites": frozenset(("scale_average_pools",))},
    "tails": {"tails": {}},
    "residual": {"residual": frozenset()},
    "activations": {"activation": fq.Spec(), "activations": _COARSE},
    "weights": {"weight": fq.Spec(), "weights": fq.Grids(granularity=("per_tensor",))},
    "biases": {"bias": "int32", "biases": ("int32",)},
    "shapes": {"shapes": fq.Shapes(ranks=(2,))},
    "kernels": {"kernels": {"conv2d": fq.Kernel(one_group=True)}},
    "share": {"share": frozenset(("mul",))},
    "ranges": {"ranges": {"sigmoid": (0.0, 0.5)}},
    "signed": {"signed": frozenset(("conv2d",))},
    "integer_outputs": {"integer_outputs": True},
    "positions": {"positions": (fq.Position(measure="cut", kinds=frozenset(("conv2d",)), low=40),)},
}


def test_every_rule_that_is_broken_is_caught() -> None:
    torch.manual_seed(0)
    base = by_name("x86-vnni")
    made = quantized(Everything(), (torch.randn(2, 4, 8, 8),), base)
    assert not check_target(made, base)
    for rule, change in BREAKS.items():
        found = check_target(made, dataclasses.replace(base, **change))
        assert {each.rule for each in found} == {rule}, rule
    # channel_scales allows something that `activations` forbids elsewhere; the last two say what conversion does
    defaults = {"name", "activation", "weight", "bias", "channel_scales", "clear_ties", "rounded_outputs"}
    said = {field.name for field in dataclasses.fields(fq.Target)} - defaults
    assert said == BREAKS.keys()
    with pytest.raises(fq.StageError, match="Convert it first"):
        check_target(nn.Linear(2, 2), base)


def test_scales_by_channel_are_where_a_target_has_them() -> None:
    """Before depthwise convolutions only, whatever its `activations` say of other tensors."""
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    base = by_name("generic")
    target = dataclasses.replace(base, channel_scales=frozenset(("conv2d",)))
    made = quantized(model, (torch.randn(2, 3, 8, 8),), target)
    assert any("quantize_per_channel" in str(node.target) for node in made.graph.nodes)
    assert check_target(made, target) == ()
    assert {each.rule for each in check_target(made, base)} == {"activations"}


@pytest.mark.parametrize(
    ("target", "qconfig", "why"),
    [
        ("tensorrt", by_name("x86-vnni").qconfig, "takes no input of unsigned, not signed"),
        ("xint8", by_name("tensorrt").qconfig, "float scales, not pow2"),
        ("xint8", dataclasses.replace(by_name("xint8").qconfig, bias=None), "takes no bias of float"),
        ("qnnpack", by_name("generic").qconfig, "signed, not unsigned"),
    ],
)
def test_what_a_rule_asks_beyond_the_target_stays_float_and_says_why(target: str, qconfig: Any, why: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).eval(), torch.randn(1, 3, 8, 8)
    with pytest.warns(UserWarning, match="nothing in"):
        prepared = fq.prepare_fx(model, {"": qconfig}, (x,), target=target)
    rows = list(fq.explain(prepared))
    assert rows and all(row.status == "float" and f"target {target}" in row.reason for row in rows)
    assert why in rows[0].reason


def test_a_tensor_beyond_the_limits_stays_float() -> None:
    target = dataclasses.replace(by_name("bpu"), shapes=fq.Shapes(ranks=(4,), size=16))
    model = nn.Sequential(nn.Conv2d(3, 20, 3), nn.Conv2d(20, 4, 3), nn.Conv2d(4, 4, 3)).eval()
    prepared = fq.prepare_fx(model, {"": target.qconfig}, (torch.randn(1, 3, 12, 12),), target=target)
    assert [row.status for row in fq.explain(prepared)] == ["float", "float", "int8"]
    assert "an axis of 20, at most 16" in next(iter(fq.explain(prepared))).reason


def _table() -> str:
    as_here = ("x86", "fbgemm", "onednn", "onnxruntime", "openvino")  # depend on the CPU
    rows = [(name, by_name(name)) for name in TARGETS if name not in as_here]
    lines = ["| name | activation | weight | bias | kinds |", "|---|---|---|---|---|"]
    for name, target in rows:
        specs = (str(spec).rpartition(" ")[0] for spec in (target.activation, target.weight))
        lines.append(f"| `{name}` | {' | '.join(specs)} | {bias_form(target.bias)} | {len(target.kinds)} |")
    return "\n".join(lines)


def test_the_guide_has_all_targets() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "targets.md").read_text()
    found = guide.partition("test_targets.py -->\n")[2].partition("\n<!-- end of targets")[0]
    assert found == _table(), f"docs/targets.md should have:\n{_table()}"
    for block in re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        exec(compile(block, "targets.md", "exec"), {})


def test_targets_differ_where_the_hardware_does() -> None:
    assert by_name("qnnpack").weight.granularity == "per_tensor"
    assert (by_name("x86-vnni").weight.quant_max, by_name("x86-avx2").weight.quant_max) == (127, 64)
    made = quantized(
        nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4)), (torch.randn(8, 4),), by_name("tflite")
    )
    nodes = [n for n in made.graph.nodes if "quantize_per_tensor" in str(n.target)]
    assert (1 / 256, -128) in {(float(n.args[1]), int(n.args[2])) for n in nodes}


def test_the_command_shows_targets_and_names_the_closest(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["show", "target", "xint8"])
    assert shown.exit_code == 0 and "positions" in shown.output
    made = CliRunner().invoke(app, ["show", "target", "xint8", "--json"])
    assert from_plain(json.loads(made.output)) == by_name("xint8")
    wrong = CliRunner().invoke(app, ["show", "target", "xint"])
    assert wrong.exit_code == 1 and "Closest: 'xint8'" in wrong.output
