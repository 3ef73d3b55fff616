"""The OpenVINO engine is called like the model, agrees with the reference, and survives copying and pickling."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fq
from fxquant.engines.runtimes.openvino import OpenVino
from fxquant.numerics.affine import sqnr_db
from fxquant.targets.cpu import cpu
from runtime_agreement import check_agreement
from zoo import EncoderBlock

for package in ("onnx", "onnxscript", "openvino"):
    pytest.importorskip(package)


class Residuals(nn.Module):
    """Two blocks whose input is also read by their first convolution, as in ResNets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        stem, a, b, c, d = self.convs
        x = stem(x).relu()
        x = (b(a(x).relu()) + x).relu()
        x = (d(c(x).relu()) + x).relu()
        return x.mean((2, 3))


class Attends(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        allowed = torch.ones(5, 5, dtype=torch.bool).tril()
        masks = {"none": None, "bool": allowed, "float": torch.zeros(5, 5).masked_fill(~allowed, -1e9)}
        self.register_buffer("mask", masks[mask])

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=self.mask)


NAMES = ("resnet", "encoder_block", "keywords_to_dict")


@pytest.mark.broad
@pytest.mark.parametrize("target", ["x86", "openvino"])
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_reference_at_any_batch(name: str, target: str) -> None:
    check_agreement(OpenVino, name, target)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_float_parts_stay_float(mode: str) -> None:
    """OpenVINO would quantize more activations by itself, and compute in bfloat16 where the CPU has it."""
    x = torch.randn(2, 8, 64)
    reference = fq.quantize(EncoderBlock(64).eval(), example_inputs=(x,), mode=mode, engine="reference")
    torch.testing.assert_close(OpenVino(reference, x)(x), reference(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_result_is_not_overwritten_by_the_next_call() -> None:
    x = torch.randn(2, 8)
    engine = OpenVino(fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x)
    first = engine(x)
    kept = first.clone()
    engine(x + 1)
    assert torch.equal(first, kept)


def test_several_threads_at_once() -> None:
    x = torch.randn(2, 3, 32, 32)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    engine = fq.quantize(net, [x], engine="openvino")
    inputs = [torch.randn_like(x) for _ in range(4)]
    expected = [engine(each) for each in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(engine, inputs * 10))
    assert all(torch.equal(left, right) for left, right in zip(found, expected * 10, strict=True))


def test_follows_the_threads_of_torch() -> None:
    x = torch.randn(2, 8)
    engine = OpenVino(fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x)
    engine(x)
    compiled = engine._session.at([x.numpy()]).model
    assert compiled.get_property("INFERENCE_NUM_THREADS") == torch.get_num_threads()


def test_many_shapes_share_one_compiled_model() -> None:
    x = torch.randn(2, 8)
    reference = fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference")
    engine = OpenVino(reference, x)
    for batch in range(1, 10):
        rows = torch.randn(batch, 8)
        torch.testing.assert_close(engine(rows), reference(rows).detach(), rtol=1e-4, atol=1e-4)
    assert len(engine._session.made) == 5


def _kernels(engine: OpenVino, x: Tensor) -> list[tuple[str, ...]]:
    """The ops that run: what they are, what they came from, and their precision."""
    engine(x)
    ran = engine._session.at([x.numpy()]).model.get_runtime_model().get_ops()
    infos = [op.get_rt_info() for op in ran]
    wanted = ("layerType", "originalLayersNames", "runtimePrecision")
    return [tuple(info[name].astype(str) for name in wanted) for info in infos]


def test_residual_adds_run_inside_of_convolutions() -> None:
    x = torch.randn(1, 8, 12, 12)
    reference = fq.quantize(Residuals().eval(), [x], engine="reference", target="openvino")
    engine = OpenVino(reference, x)
    adding = [kind for kind, names, _ in _kernels(engine, x) if "node_add" in names]
    assert adding == ["Convolution"] * 2
    assert sqnr_db(reference(x).detach(), engine(x)) > 50


class Tiny(nn.Module):
    """Adds tensors so small that OpenVINO takes their zero points for nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        for conv in (self.a, self.b):
            nn.init.uniform_(conv.bias, 0, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x * 1e-6)
        return self.b(y) + y


class Dense(nn.Module):
    """A normalization behind a concatenation, as in DenseNets: on two pairs in a row OpenVINO crashes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 4, 1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x).relu(), 2)
        return self.out(self.norm(torch.cat((x, self.conv(x)), 1)).relu())


class Scaled(nn.Module):
    """A parameter times a tensor, and both are int8."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.gamma = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.gamma * self.a(x))


class Extremes(nn.Module):
    """The largest and the smallest values of pictures, quantized for what reads them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = nn.Conv2d(3, 8, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x) - 3
        return self.out(torch.cat((y.amax((2, 3), keepdim=True), y.amin((2, 3))[:, :, None, None]), 1))


class PadsUnevenly(nn.Module):
    """A skip connection: what comes from below is padded by what it lacks, once or twice, and joined."""

    def __init__(self, *pads: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pads, self.skip, self.below = pads, nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 2)
        self.out = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.below(x)
        for pad in self.pads:
            y = F.pad(y, pad)
        return self.out(torch.cat((self.skip(x)[..., : y.shape[2], : y.shape[3]], y), 1))


def pooled(stride: int = 2, **settings: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(3, stride, 1, **settings), nn.Conv2d(4, 4, 1))


@pytest.mark.broad
@pytest.mark.parametrize(
    "build",
    [
        Tiny,
        Dense,
        Scaled,
        Extremes,
        lambda: PadsUnevenly((0, 1)),
        lambda: PadsUnevenly((1, 0), (-1, 1, 1, 0)),
        lambda: nn.Sequential(nn.Conv2d(3, 1, 1), nn.ReLU(), nn.Conv2d(1, 4, 1)),
        pooled,
        partial(pooled, ceil_mode=True),
        partial(pooled, stride=3, ceil_mode=True),
        partial(pooled, ceil_mode=True, count_include_pad=False),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConstantPad2d(1, 0.0), nn.AvgPool2d(3, 2), nn.Conv2d(4, 4, 1)),
    ],
    ids=[
        *("tiny", "dense", "scaled", "extremes", "padded skip", "padded twice", "one channel"),
        *("padded", "ceil", "left out", "not counted", "padded before"),
    ],
)
def test_graphs_that_openvino_gets_wrong(build: Callable[[], nn.Module]) -> None:
    model, x = build().eval(), torch.randn(2, 3, 14, 14)
    reference = fq.quantize(model, [x], engine="reference", target="openvino")
    assert sqnr_db(reference(x).detach(), OpenVino(reference, x)(x)) > 40


@pytest.mark.skipif(not cpu().vnni, reason="OpenVINO multiplies queries and keys in float on CPUs without VNNI")
def test_queries_meet_keys_in_int8() -> None:
    x = torch.randn(2, 32, 64)
    engine = OpenVino(fq.quantize(EncoderBlock(64).eval(), [x], engine="reference", target="openvino"), x)
    softmax = next(precision for _, names, precision in _kernels(engine, x) if "Softmax" in names)
    assert softmax == "i8"


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(2, 5, 8), (2, 3, 5, 8)], ids=["3d", "4d"])
@pytest.mark.parametrize("mask", ["none", "float", "bool"])
def test_attention_of_any_form(mask: str, shape: tuple[int, ...]) -> None:
    if mask == "bool" and len(shape) == 3:
        pytest.skip("torch.onnx has none of these")
    torch.manual_seed(0)
    model, x = Attends(mask).eval(), torch.randn(shape)
    reference = fq.quantize(model, [x], engine="reference", target="openvino")
    assert [row.status for row in fq.explain(reference) if row.kind == "attention"] == ["int8"]
    assert sqnr_db(reference(x).detach(), OpenVino(reference, x)(x)) > 50


def test_settings_that_openvino_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 8, 12, 12)
    engine = OpenVino(fq.quantize(Residuals().eval(), [x], engine="reference"), x)
    expected = engine(x)
    monkeypatch.setattr("fxquant.engines.runtimes.openvino._WITHOUT_SNIPPETS", {"NO_SUCH_SETTING": "YES"})
    torch.testing.assert_close(OpenVino(fq.quantize(Residuals().eval(), [x], engine="reference"), x)(x), expected)


def test_bad_calls() -> None:
    x = torch.randn(2, 8)
    engine = OpenVino(fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference"), x)
    with pytest.raises(fq.FxQuantError, match=r"cannot run on inputs \(2, 9\) float32"):
        engine(torch.randn(2, 9))
    with pytest.raises(fq.ConfigError, match="do not fit"):
        engine(x, x)


class LeavesOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, ids: Tensor, x: Tensor, mask: Tensor, more: Tensor) -> Tensor:
        return self.body(x) + more


def test_inputs_that_nothing_reads(caplog: pytest.LogCaptureFixture) -> None:
    """OpenVINO drops them from what it reads."""
    ids, x, mask, more = torch.arange(4)[None], torch.randn(4, 8), torch.ones(1, 1), torch.randn(8)
    model = LeavesOut().eval()
    quantized = fq.quantize(model, [(ids, x, mask, more)], engine="openvino")
    assert sqnr_db(model(ids, x, mask, more), quantized(ids, x, mask, more)) > 30
    assert sqnr_db(model(ids, x, mask, 2 * more), quantized(ids + 1, x, 0 * mask, 2 * more)) > 30
    assert "runs on onednn" not in caplog.text
