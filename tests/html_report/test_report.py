"""What the report measures and writes: each part against the call that it stands for, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import CalibrationError, ConfigError, StageError
from report_net import Net


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 3, 8, 8) for _ in range(3)]


@pytest.fixture(scope="module")
def quantized(net: nn.Module, data: list[Tensor]) -> nn.Module:
    return fq.quantize(net, data)


def read(path: Path) -> dict[str, Any]:
    """The data of a page."""
    text = path.read_text(encoding="utf-8")
    start = text.index('<script id="data" type="application/json">') + len('<script id="data" type="application/json">')
    return json.loads(text[start : text.index("</script>", start)])


def test_the_page_has_what_the_calls_say(
    net: nn.Module, quantized: nn.Module, data: list[Tensor], tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in quantized.state_dict().items()}
    made = fq.report(
        net, quantized, data, tmp_path / "net.html", evaluate=lambda m: float(m(data[0]).argmax(1)[0]), seconds=0
    )
    found, account = fq.compare(net, quantized, data), fq.explain(quantized)
    assert read(tmp_path / "net.html") == made.to_dict() == json.loads(made.to_json())
    assert made.data["compare"]["sqnr"] == pytest.approx(found.output_sqnr, rel=1e-4)
    tensors = [tensor for box in made.data["graphs"]["int8"]["nodes"] for tensor in box["tensors"]]
    assert {tensor["node"]: tensor["sqnr"] for tensor in tensors} == {
        row.node: pytest.approx(row.sqnr, rel=1e-4) for row in found
    }
    for tensor in tensors:
        assert sum(tensor["counts"]) == pytest.approx(3 * _size(net, data, tensor["node"]), rel=0.01), tensor["node"]
    assert (
        {row["path"] for row in made.data["account"]["float"]}
        == {"softmax"}
        == {row.path or row.node for row in account if row.status == "float"}
    )
    assert made.data["agreement"] == {"same": 6, "every": 6}
    assert made.data["score"]["float"] == made.data["score"]["int8"]
    assert torch.__version__.startswith(made.data["made"]["torch"])  # a build of CUDA's adds to it
    assert "outputs" in str(made) and str(made.path) in str(made)
    assert all(torch.equal(tensor, before[name]) for name, tensor in quantized.state_dict().items())


def _size(net: nn.Module, data: list[Tensor], node: str) -> int:
    """Values of a tensor of one batch, by the name of its node."""
    sizes = {"x": (2, 3, 8, 8), "mean": (2, 8), "head": (2, 5), "softmax": (2, 5)}
    return int(torch.Size(sizes.get(node, (2, 8, 8, 8))).numel())


def test_the_int8_graph_has_a_box_for_each_kernel(
    net: nn.Module, quantized: nn.Module, data: list[Tensor], tmp_path: Path
) -> None:
    made = fq.report(net, quantized, data, tmp_path / "net.html", seconds=0, most=0)
    left, right = ({box["id"]: box for box in made.data["graphs"][side]["nodes"]} for side in ("float", "int8"))
    assert [box["label"] for box in left.values()][:4] == ["input", "conv2d", "batch_norm", "relu"]
    assert [box["label"] for box in right.values()] == (
        ["input", "conv2d + relu", "conv2d + silu", "add", "mean", "linear", "softmax", "output"]
    )
    stem = next(box for box in right.values() if box["path"] == "stem.0")
    assert {left[each]["path"] for each in stem["partners"]} == {"stem.0", "stem.1", "stem.2"}
    assert stem["code"] == "x = self.stem(x)" and stem["where"].startswith("report_net.py:")
    assert "weight s8" in stem["decisions"][0]["reason"]
    arrows = {(right[a]["label"], right[b]["label"]): whole for a, b, whole in made.data["graphs"]["int8"]["edges"]}
    assert arrows["conv2d + relu", "add"] and arrows["input", "conv2d + relu"] and not arrows["softmax", "output"]
    assert made.data["speed"] is None and made.data["tried"] is None and made.data["fixes"] == []


@pytest.mark.parametrize("stage", ["prepared", "dynamic", "weight_only", "reference"])
def test_every_stage_and_mode(stage: str, net: nn.Module, data: list[Tensor], tmp_path: Path) -> None:
    if stage == "prepared":
        model = fq.calibrate(fq.prepare_fx(net, fq.get_default_qconfig_mapping(), (data[0],)), data)
    elif stage == "reference":
        model = fq.quantize(net, data, engine="reference")
    else:
        model = fq.quantize(net, data, mode=stage)
    made = fq.report(net, model, data, tmp_path / "net.html", seconds=0, most=2)
    assert len(made.data["tried"]["kernels"]) == 2
    assert made.data["compare"]["batches"] == 3


class Loops(nn.Module):
    """A loop that depends on the data, between two parts that trace."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        while float(x.abs().max()) > 1:
            x = x / 2
        return self.last(x)


def test_several_regions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = Loops().eval(), [torch.randn(2, 4) for _ in range(2)]
    made = fq.report(model, fq.quantize(model, data), data, tmp_path / "loops.html", seconds=0)
    assert {box["region"] for box in made.data["graphs"]["int8"]["nodes"]} == {"first", "last"}
    assert {each["path"] for each in made.data["tried"]["kernels"]} == {"first", "last"}


def test_names_do_not_become_html(tmp_path: Path) -> None:
    model, data = nn.Sequential(nn.Linear(4, 4)).eval(), [torch.randn(2, 4)]
    title = "</script><script>alert(1)</script>{{code}}{{data}}"
    fq.report(model, fq.quantize(model, data), data, tmp_path / "net.html", seconds=0, most=0, title=title)
    text = (tmp_path / "net.html").read_text()
    assert "alert(1)</script>" not in text
    assert read(tmp_path / "net.html")["title"] == title


def test_bad_input_leaves_the_old_file(
    net: nn.Module, quantized: nn.Module, data: list[Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "net.html"
    path.write_text("old")
    with pytest.raises(StageError, match="float model first"):
        fq.report(quantized, net, data, path)
    with pytest.raises(StageError, match="needs a converted model"):
        fq.report(net, net, data, path)
    with pytest.raises(CalibrationError, match="no batches"):
        fq.report(net, quantized, [], path)
    with pytest.raises(CalibrationError, match="iterable of batches"):
        fq.report(net, quantized, data[0], path)
    with pytest.raises(ConfigError, match="num_batches"):
        fq.report(net, quantized, data, path, num_batches=0)
    with pytest.raises(fq.FxQuantError, match="cannot write"):
        fq.report(net, quantized, data, tmp_path / "no" / "net.html", seconds=0, most=0)
    assert path.read_text() == "old"
