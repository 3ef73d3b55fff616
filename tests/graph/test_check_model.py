"""What is no module is refused by every call, which says what to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fxquant as fq

CALLS: dict[str, Callable[[object], object]] = {
    "quantize": lambda given: fq.quantize(given, [torch.randn(1, 4)]),
    "prepare_fx": lambda given: fq.prepare_fx(given, fq.default_qconfig, (torch.randn(1, 4),)),
    "convert_fx": fq.convert_fx,
    "explain": fq.explain,
    "compare": lambda given: fq.compare(given, nn.Linear(4, 4), [torch.randn(1, 4)]),
    "save": lambda given: fq.save(given, "net.fq"),
    "benchmark": lambda given: fq.benchmark(given, (torch.randn(1, 4),)),
    "profile": lambda given: fq.profile(given, torch.randn(1, 4)),
    "calibrate": lambda given: fq.calibrate(given, [torch.randn(1, 4)]),
    "sensitivity": lambda given: fq.sensitivity(given, [torch.randn(1, 4)]),
    "export_onnx": lambda given: fq.export_onnx(given, "net.onnx"),
    "export_pt2": lambda given: fq.export_pt2(given, "net.pt2", torch.randn(1, 4)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("given", "told"), [("net.fq", "Load it first"), (nn.Linear, "the class Linear"), (None, "")])
def test_what_is_no_module_is_named(name: str, given: object, told: str) -> None:
    with pytest.raises(fq.FxQuantError, match=f"^{name} got .*{told}"):
        CALLS[name](given)


@pytest.mark.parametrize("name", ["quantize", "prepare_fx"])
def test_a_model_without_numbers_is_refused(name: str) -> None:
    with pytest.raises(fq.CaptureError, match=f"^{name} got a model whose 'weight' is on the meta device"):
        CALLS[name](nn.Linear(4, 4, device="meta").eval())


@pytest.mark.parametrize("prepare", [fq.prepare_fx, fq.prepare_qat_fx, fq.quantize])
def test_parameters_without_a_shape(prepare: Callable[..., object]) -> None:
    lazy = nn.Sequential(nn.LazyLinear(4)).train(prepare is fq.prepare_qat_fx)
    with pytest.raises(fq.CaptureError, match=r"'0.weight' has no shape yet .* Call the model once"):
        prepare(lazy, [torch.randn(2, 8)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_in_another_dtype_is_told_of(dtype: torch.dtype, recwarn: pytest.WarningsRecorder) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval(), torch.randn(3, 4)
    fq.prepare_fx(model, fq.default_qconfig, (x,))
    assert not recwarn.list
    with pytest.warns(UserWarning, match=rf"Sequential computes in {dtype}.* Quantize model.float\(\)"):
        fq.prepare_fx(model.to(dtype), fq.default_qconfig, (x.to(dtype),))


def test_a_model_in_distributed_data_parallel_is_refused(tmp_path: Path) -> None:
    """What is made of it would share no gradients."""
    x, model = torch.randn(2, 4), nn.Sequential(nn.Linear(4, 4))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(fq.CaptureError, match=r"prepare_qat_fx got a DistributedDataParallel\. .* model\.module"):
            fq.prepare_qat_fx(parallel.train(), fq.get_default_qat_qconfig_mapping(), (x,))
        with pytest.raises(fq.CaptureError, match="quantize got a DistributedDataParallel"):
            fq.quantize(parallel.eval(), [x])
    finally:
        torch.distributed.destroy_process_group()
