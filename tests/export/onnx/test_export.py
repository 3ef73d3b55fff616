"""Exported models are valid ONNX, agree with the reference graph, and reach a runtime's int8 kernels."""

from __future__ import annotations

import importlib.util
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import fxquant as fq
from exact_session import exact_session
from fxquant.engines.example import example_of
from fxquant.export.onnx.export import export_onnx
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO, EncoderBlock

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NAMES = ("mobilenet", "unet", "vision_transformer", "masked_inf")
_WEIGHT = fq.default_qconfig.weight
QCONFIGS = {
    "dynamic": fq.default_dynamic_qconfig,
    "dynamic_signed": fq.QConfig(activation=fq.Spec(dynamic=True, observer="minmax"), weight=_WEIGHT),
    "weight_only": fq.weight_only_qconfig,
    "int4": fq.int4_weight_only_qconfig,
    "7_bits": fq.QConfig(activation=fq.Spec(bits=7, signed=False, symmetric=False), weight=_WEIGHT),
    "12_bits": fq.QConfig(activation=fq.Spec(bits=12, symmetric=False), weight=_WEIGHT),
    "half_up": fq.QConfig(activation=fq.Spec(signed=False, symmetric=False, rounding="half_up"), weight=_WEIGHT),
    "per_tensor": fq.QConfig(activation=fq.default_qconfig.activation, weight=fq.Spec(observer="minmax")),
}


def quantize(model: nn.Module, *args: Any, qconfig: fq.QConfig | None = None, **kwargs: Any) -> nn.Module:
    return fq.quantize(
        model.eval(),
        [args or kwargs],
        qconfig_mapping=None if qconfig is None else fq.QConfigMapping().set_global(qconfig),
        example_inputs=args,
        example_kwargs=kwargs,
        engine="reference",
    )


def session(path: Path, optimized: Path | None = None) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def repeat(count: int, x: Tensor) -> Tensor:
    return torch.cat([x] * count)


def run(path: Path, *args: Any, **kwargs: Any) -> list[Tensor]:
    opened = exact_session(path)
    names = [value.name for value in opened.get_inputs()]
    feed = dict(zip(names, (leaf.numpy() for leaf in tree_leaves((args, kwargs))), strict=True))
    return [torch.from_numpy(array) for array in opened.run(None, feed)]


def reference(model: nn.Module, *args: Any, **kwargs: Any) -> list[Tensor]:
    with torch.no_grad():
        return tree_leaves(model(*args, **kwargs))


def kernels(path: Path) -> Counter[str]:
    optimized = path.with_suffix(".optimized")
    session(path, optimized)
    return Counter(node.op_type for node in onnx.load(optimized).graph.node)


ROUNDED = ("vision_transformer",)  # ONNX Runtime rounds one of its values to the next step


@pytest.mark.broad
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_reference_at_any_batch(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    args, kwargs = entry.inputs(), entry.kwargs()
    quantized = quantize(entry.build(), *args, **kwargs)
    path = export_onnx(quantized, tmp_path / "m.onnx", args, example_kwargs=kwargs, dynamic_batch=True)
    onnx.checker.check_model(str(path), full_check=True)
    for count in (1, 3):
        more, more_kwargs = tree_map(partial(repeat, count), (args, kwargs))
        actual = run(path, *more, **more_kwargs)
        for left, right in zip(reference(quantized, *more, **more_kwargs), actual, strict=True):
            assert sqnr_db(left, right) > (40 if name in ROUNDED else 50)


@pytest.mark.broad
@pytest.mark.parametrize("qconfig", QCONFIGS.values(), ids=QCONFIGS)
def test_every_kind_of_quantization(qconfig: fq.QConfig, tmp_path: Path) -> None:
    x = torch.randn(2, 8, 32)
    quantized = quantize(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), x, qconfig=qconfig)
    path = export_onnx(quantized, tmp_path / "m.onnx", x)
    onnx.checker.check_model(str(path), full_check=True)
    for scale in (1.0, 10.0):  # 10: far outside the calibrated range, where grids saturate
        (expected,), (actual,) = reference(quantized, x * scale), run(path, x * scale)
        assert sqnr_db(expected, actual) > 45


def test_weights_and_biases_are_integers(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    path = export_onnx(quantize(ZOO["plain"].build(), x), tmp_path / "m.onnx", x)
    types = Counter(t.data_type for t in onnx.load(path).graph.initializer if len(t.dims) > 1)
    assert types == {onnx.TensorProto.INT8: 3}
    assert sum(t.data_type == onnx.TensorProto.INT32 for t in onnx.load(path).graph.initializer) >= 3


def test_four_bit_weights_take_four_bits(tmp_path: Path) -> None:
    x = torch.randn(2, 64)
    quantized = quantize(nn.Sequential(nn.Linear(64, 64)), x, qconfig=fq.int4_weight_only_qconfig)
    weights = onnx.load(export_onnx(quantized, tmp_path / "m.onnx", x)).graph.initializer
    assert [len(t.raw_data) for t in weights if t.data_type == onnx.TensorProto.INT4 and t.dims[:] == [64, 64]] == [
        2048
    ]


def test_onnx_runtime_finds_its_int8_kernels(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6(), nn.Flatten()),
        *(nn.Linear(200, 16), nn.ReLU(), nn.Linear(16, 4)),
    )
    found = kernels(export_onnx(quantize(model, x), tmp_path / "m.onnx", x))
    assert (found["QLinearConv"], found["QGemm"]) == (2, 2)
    assert not {"Conv", "FusedConv", "Gemm", "Relu", "Clip"} & found.keys()
    x = torch.randn(2, 8, 32)
    assert kernels(export_onnx(quantize(EncoderBlock(), x), tmp_path / "s.onnx", x))["QGemm"] == 4
    dynamic = quantize(EncoderBlock(), x, qconfig=fq.default_dynamic_qconfig)
    path = export_onnx(dynamic, tmp_path / "d.onnx", x, dynamic_batch=True)
    assert kernels(path)["DynamicQuantizeMatMul"] == 4


def test_a_model_for_onnx_runtime_gives_its_very_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 1)).eval()
    x = torch.randn(2, 3, 24, 24)
    quantized = fq.quantize(model, [x], target="onnxruntime", engine="reference", precision="int8", effort="fast")
    (found,) = run(fq.export_onnx(quantized, tmp_path / "m.onnx", x), x)
    torch.testing.assert_close(found, quantized(x), rtol=1e-5, atol=1e-5)  # with float biases, some were a step off


def test_a_bias_far_above_its_weights_fits(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))
    with torch.no_grad():
        model[0].weight[0] *= 1e-12
        model[0].weight[1] = 0
        model[0].bias[:2] = 3.0
    x = torch.randn(2, 3, 4, 4)
    quantized = quantize(model, x)
    (expected,), (actual,) = reference(quantized, x), run(export_onnx(quantized, tmp_path / "m.onnx", x), x)
    assert sqnr_db(expected, actual) > 50
    for target in ("onnxruntime", "tflite", "npu"):  # int32 in the model already
        stored = fq.quantize(model.eval(), [x], target=target, engine="reference", precision="int8")
        assert sqnr_db(expected, stored(x)) > 15, target


def test_a_lowered_model_gives_the_same_file(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    plain, lowered = quantize(model, x), fq.quantize(model, [x])
    first, second = (export_onnx(m, tmp_path / f"{i}.onnx", x) for i, m in enumerate((plain, lowered)))
    assert first.read_bytes() == second.read_bytes()
    lowered(x)  # still lowered, still runs


class OneDict(nn.Linear):
    def forward(self, data: dict[str, Tensor]) -> Tensor:
        return super().forward(data["image"]) + data["shift"]


def test_a_dict_that_is_the_one_argument(tmp_path: Path) -> None:
    batch = {"image": torch.randn(2, 8) * 9, "shift": torch.randn(2, 4)}
    quantized = fq.quantize(OneDict(8, 4).eval(), [batch], engine="reference")
    session = exact_session(export_onnx(quantized, tmp_path / "m.onnx", batch))
    names = [each.name for each in session.get_inputs()]
    (found,) = session.run(None, {name: x.numpy() for name, x in zip(names, batch.values(), strict=True)})
    assert sqnr_db(quantized(batch), torch.from_numpy(found)) > 60
    drawn = cast("dict[str, Tensor]", example_of(quantized)["data"])  # of its range, where it is quantized
    assert drawn["shift"].abs().max() <= 1 < drawn["image"].abs().max()


def test_an_example_of_one_leaves_the_batch_open(tmp_path: Path) -> None:
    x = torch.randn(1, 16)
    quantized = quantize(ZOO["functional_mlp"].build(), x)
    path = export_onnx(quantized, tmp_path / "m.onnx", x, dynamic_batch=True)
    assert session(path).get_inputs()[0].shape == ["batch", 16]
    assert session(path).get_outputs()[0].shape == ["batch", 4]
    assert session(export_onnx(quantized, path, x)).get_inputs()[0].shape == [1, 16]


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 8)
    model = nn.Sequential(nn.Linear(8, 4)).eval()
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), x)
    quantized = quantize(model, x)
    with pytest.raises(fq.StageError, match="plain Sequential"):
        export_onnx(model, tmp_path / "m.onnx", x)
    with pytest.raises(fq.StageError, match="is prepared"):
        export_onnx(prepared, tmp_path / "m.onnx", x)
    with pytest.raises(fq.ConfigError, match="no directory"):
        export_onnx(quantized, tmp_path / "missing" / "m.onnx", x)
    with pytest.raises(fq.ConfigError, match="is a directory"):
        export_onnx(quantized, tmp_path, x)
    with pytest.raises(fq.ConfigError, match="example inputs"):
        export_onnx(quantized, tmp_path / "m.onnx", ())
    with pytest.raises(fq.ConfigError, match="do not fit"):
        export_onnx(quantized, tmp_path / "m.onnx", (x, x))
    with pytest.raises(fq.FxQuantError, match=r"the model itself fails on the example inputs: input 0.*mat1"):
        export_onnx(quantized, tmp_path / "m.onnx", torch.randn(2, 9))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(fq.ConfigError, match=r"pip install 'fxquant\[onnx\]'"):
        export_onnx(quantized, tmp_path / "m.onnx", x)
    assert not list(tmp_path.iterdir())


class AddsRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, row: Tensor, x: Tensor) -> Tensor:
        return self.fc(x) + row


def test_an_example_that_only_runs_as_it_is_given(tmp_path: Path) -> None:
    """The first axis of `row` is 1 as a batch would be; opened, it does not fit `x`."""
    example = torch.randn(1, 8), torch.randn(4, 8)
    model = AddsRow().eval()
    quantized = fq.quantize(model, [example], engine="reference")
    with pytest.raises(fq.FxQuantError, match="dynamic_batch=False keeps that of the example"):
        export_onnx(quantized, tmp_path / "m.onnx", example, dynamic_batch=True)
    in_runtime = fq.quantize(model, [example], engine="onnxruntime")
    assert sqnr_db(quantized(*example), in_runtime(*example)) > 60


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64)).eval(), torch.randn(2, 64)
    path, quantized = tmp_path / "m.onnx", fq.quantize(model, [x])
    before = export_onnx(quantized, path, x).read_bytes()
    import onnx_ir as ir

    def full(model: Any, path: Path, **kwargs: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ir, "save", full)
        with pytest.raises(fq.ConfigError, match=r"cannot write .*m\.onnx.*No space left"):
            export_onnx(quantized, path, x)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    monkeypatch.setattr("fxquant.export.onnx.export._LARGEST", 10)  # tensors in a file of their own
    for _ in range(2):
        export_onnx(quantized, path, x)
        data = [p for p in tmp_path.iterdir() if p.name.endswith(".data")]
        assert len(data) == 1 and len(list(tmp_path.iterdir())) == 2
        assert data[0].name.encode() in path.read_bytes()
