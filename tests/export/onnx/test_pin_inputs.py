"""Inputs that are rounded beside a tie give the same integers in the file as in the reference."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import fxquant as fq
from exact_session import exact_session
from fxquant.targets import by_name


def exported(target: str, folder: Path) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(2, 3, 8, 8)
    prepared = fq.prepare_fx(model, {"": by_name(target).qconfig}, (x,), target=target)
    prepared(x)
    made = fq.convert_to_reference_fx(prepared)
    return made, fq.export_onnx(made, folder / f"{target}.onnx", torch.randn(64, 3, 8, 8))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_values_beside_a_tie_round_as_in_the_reference(target: str, tmp_path: Path) -> None:
    made, path = exported(target, tmp_path)
    quantize = next(node for node in made.graph.nodes if "quantize_per_tensor" in str(node.target))
    scale, zero = quantize.args[1], quantize.args[2]
    generator = torch.Generator().manual_seed(1)
    steps = torch.randint(-zero, 255 - zero, (64, 3, 8, 8), generator=generator)
    x = torch.nextafter((steps.double() + 0.5) * scale, torch.zeros(())).float()  # half of them fall on either side
    with torch.no_grad():
        wanted = made(x)
    session = exact_session(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))
    names = [node.op_type for node in onnx.load(path).graph.node]
    assert names.count("Round") == 1 and names.index("Round") < names.index("QuantizeLinear")


@pytest.mark.parametrize("target", ["tensorrt", "tflite", "xint8"])
def test_files_for_other_hardware_have_pairs_of_one_scale(target: str, tmp_path: Path) -> None:
    _, path = exported(target, tmp_path)
    assert "Round" not in [node.op_type for node in onnx.load(path).graph.node]
