"""Power-of-two scales all the way: shared where the target says so, integer biases, shifts in range."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fq
from fxquant.graph.notes import note_of
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.weights.qat_block import QatBlock
from fxquant.numerics.weights.quantized_weight import QuantizedWeight
from fxquant.ops.table import OPS, activation_nodes
from fxquant.passes.find_quantizer import quantizer_of
from fxquant.passes.solve_positions import _end
from fxquant.targets.npu import npu, xint8
from zoo import ZOO, images

NAMES = ("plain", "resnet", "unet", "in_place", "linear_batch_norm")


def trained(name: str, target: fq.Target, rounding: str = "half_even") -> tuple[nn.Module, tuple[Any, ...]]:
    entry = ZOO[name]
    qconfig = fq.QConfig(
        activation=target.activation.with_(observer="moving_average", learn="ste", rounding=rounding),
        weight=target.weight.with_(learn="ste", rounding=rounding),
        bias=target.bias,
    )
    mapping = fq.QConfigMapping().set_global(qconfig)
    model = fq.prepare_qat_fx(entry.build().train(), mapping, entry.inputs(), target=target)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(*entry.inputs()).square().mean().backward()
        optimizer.step()
    return model.eval(), entry.inputs()


def shifting(low: int, high: int) -> fq.Target:
    target = npu()
    return dataclasses.replace(target, positions=(dataclasses.replace(target.positions[0], low=low, high=high),))


def is_power(scale: torch.Tensor) -> bool:
    return all(math.log2(value).is_integer() for value in scale.reshape(-1).tolist())


def _output(frozen: nn.Module, node: Any) -> Any:
    call = _end(frozen, node)[1]
    return None if call is None else quantizer_of(frozen, call)


def shifts(frozen: nn.Module) -> list[float]:
    found = []
    for node in frozen.graph.nodes:
        op, note = OPS.of_node(node, frozen), note_of(node)
        if op is not None and note is not None and note.weight is not None:
            before, after = quantizer_of(frozen, activation_nodes(node, op)[0]), _output(frozen, node)
            if before is not None and after is not None:
                step = float(before.scale) * float(frozen.get_submodule(str(node.target)).weight_fq.scale)
                found.append(math.log2(float(after.scale) / step))
    return found


@pytest.mark.broad
@pytest.mark.parametrize("bias8", [False, True], ids=["int32", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_every_scale_is_a_power_of_two_and_every_bias_an_integer(name: str, bias8: bool) -> None:
    model, args = trained(name, npu(bias8=bias8))
    frozen = fq.freeze(model)
    quantizers = [module for module in frozen.modules() if isinstance(module, FakeQuant)]
    blocks = [module for module in frozen.modules() if type(module) is QatBlock]
    assert quantizers and all(is_power(q.scale) for q in quantizers)
    assert blocks and all(is_power(block.weight_fq.scale) for block in blocks)
    converted = fq.convert_fx(model, engine="reference")
    biases = [m.bias for m in converted.modules() if isinstance(m, QuantizedWeight) and m.bias is not None]
    assert {bias.dtype for bias in biases} == {torch.int8 if bias8 else torch.int32}
    with torch.no_grad():
        expected = model(*args)
        for other in (frozen, converted, fq.convert_fx(frozen)):
            assert sqnr_db(expected, other(*args)) > 35


@pytest.mark.parametrize("rounding", ["half_even", "half_up", "floor"])
def test_rounding_is_the_same_from_training_to_conversion(rounding: str) -> None:
    model, args = trained("resnet", npu(), rounding)
    with torch.no_grad():
        assert sqnr_db(model(*args), fq.convert_fx(model, engine="reference")(*args)) > 35


def test_adds_and_poolings_share_their_scale() -> None:
    model, _ = trained("resnet", npu())
    for node in model.graph.nodes:
        op, note = OPS.of_node(node, model), note_of(node)
        if op is not None and note is not None and op.kind == "mean":
            assert set(note.inputs) == {note.output}


def test_shifts_are_kept_in_range() -> None:
    narrow = shifting(6, 7)
    model, args = trained("plain", narrow)
    wide = shifts(fq.freeze(trained("plain", shifting(-60, 60))[0]))
    assert min(wide) < 6 or max(wide) > 7  # the range really bites
    found = shifts(fq.freeze(model))
    assert found and all(6 <= shift <= 7 for shift in found)
    with torch.no_grad():
        assert sqnr_db(fq.freeze(model)(*args), fq.convert_fx(model, engine="reference")(*args)) > 35


def test_a_calibrated_model_freezes_to_what_it_converts_to() -> None:
    entry = ZOO["resnet"]
    prepared = fq.prepare_fx(entry.build(), fq.QConfigMapping().set_global(npu().qconfig), entry.inputs(), target="npu")
    fq.calibrate(prepared, [images(4) for _ in range(4)])
    frozen = fq.freeze(prepared)
    with torch.no_grad():
        assert sqnr_db(frozen(*entry.inputs()), fq.convert_fx(prepared, engine="reference")(*entry.inputs())) > 35
        assert sqnr_db(entry.build()(*entry.inputs()), frozen(*entry.inputs())) > 15


def test_min_max_never_overflows_and_least_squares_may_clip() -> None:
    x = torch.cat([torch.randn(10_000), torch.tensor([40.0])])
    for observer in ("minmax", "histogram"):
        quantizer = FakeQuant(fq.Spec(scale="pow2", observer=observer), "x").eval()
        quantizer(x)
        scale, _ = quantizer.compute_qparams()
        assert is_power(scale)
        if observer == "minmax":
            assert 127 * float(scale) >= 40 > 63 * float(scale)
        else:
            assert 127 * float(scale) < 40


def test_an_int32_bias_survives_saving_and_the_int8_kernels(tmp_path: Any) -> None:
    entry = ZOO["plain"]
    qconfig = dataclasses.replace(fq.get_default_qconfig("x86"), bias="int32")
    prepared = fq.prepare_fx(entry.build(), fq.QConfigMapping().set_global(qconfig), entry.inputs())
    fq.calibrate(prepared, [entry.inputs()])
    reference, lowered = fq.convert_fx(prepared, engine="reference"), fq.convert_fx(prepared)
    loaded = fq.load(fq.save(lowered, tmp_path / "m.fxq"), engine="reference")
    with torch.no_grad():
        assert torch.equal(loaded(*entry.inputs()), reference(*entry.inputs()))
        assert sqnr_db(reference(*entry.inputs()), lowered(*entry.inputs())) > 30
    with pytest.raises(fq.ConfigError, match="a bias has one scale"):
        fq.QConfig(bias=fq.Spec(granularity="per_channel"))


def test_the_account_names_the_rule_that_moved_a_scale_and_its_price() -> None:
    entry = ZOO["resnet"]
    target = xint8()
    tight = tuple(
        dataclasses.replace(each, low=6, high=7) if each.measure == "cut" else each for each in target.positions
    )
    narrow = dataclasses.replace(target, positions=tight)
    prepared = fq.prepare_fx(entry.build(), {"": narrow.qconfig}, entry.inputs(), target=narrow)
    fq.calibrate(prepared, [entry.inputs()])
    converted = fq.convert_fx(prepared, engine="reference")
    assert fq.check_target(converted, narrow) == ()
    said = [row.reason for row in fq.explain(converted) if "moved from" in row.reason]
    assert said and all(" dB of noise" in text for text in said) and any("w + i - o in [6, 7]" in text for text in said)
    with torch.no_grad():
        assert sqnr_db(fq.freeze(prepared)(*entry.inputs()), converted(*entry.inputs())) > 35
        assert sqnr_db(entry.build()(*entry.inputs()), converted(*entry.inputs())) > 10
