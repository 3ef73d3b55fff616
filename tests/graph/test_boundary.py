"""input_quantized_indexes and output_quantized_indexes: integers in, integers out."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import ConfigError, InputError, StageError
from fxquant.numerics.affine import sqnr_db

MAPPING = fq.get_default_qconfig_mapping("x86")
ENGINES = ("reference", "onednn")


class TwoInTwoOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, image: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        features = self.conv(image)
        return self.fc(features.mean((2, 3))), features + extra


def quantized(
    inputs: list[int], outputs: list[int], engine: str
) -> tuple[nn.Module, nn.Module, list[tuple[Tensor, ...]]]:
    model = TwoInTwoOut().eval()
    data = [(torch.randn(2, 3, 8, 8), torch.randn(2, 8, 6, 6)) for _ in range(4)]
    config = fq.PrepareCustomConfig().set_input_quantized_indexes(inputs).set_output_quantized_indexes(outputs)
    prepared = fq.prepare_fx(model, MAPPING, data[0], config)
    for batch in data:
        torch.testing.assert_close(prepared(*batch), model(*batch))
    return model, fq.convert_fx(prepared, engine=engine), data


@pytest.mark.broad
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inputs", [[], [0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("outputs", [[], [0], [1], [0, 1]], ids=str)
def test_integers_cross_the_boundary(inputs: list[int], outputs: list[int], engine: str) -> None:
    model, converted, data = quantized(inputs, outputs, engine)
    grids = fq.boundary_qparams(converted)
    assert sorted(grids.inputs) == inputs and sorted(grids.outputs) == outputs
    given = [grids.input(i).quantize(x) if i in inputs else x for i, x in enumerate(data[0])]
    results = converted(*given)
    for index, (ours, theirs) in enumerate(zip(results, model(*data[0]), strict=True)):
        assert ours.dtype == (torch.uint8 if index in outputs else torch.float32)
        assert sqnr_db(theirs, grids.output(index).dequantize(ours) if index in outputs else ours) > 25


@pytest.mark.parametrize("engine", ["reference", "onednn"])
def test_floats_are_refused_where_integers_are_wanted(engine: Any) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(4, 8)
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), {"input_quantized_indexes": [0]})
    prepared(x)
    converted = fq.convert_fx(prepared, engine=engine)
    with pytest.raises(InputError, match=r"input 0 is torch\.float32, but the model takes torch\.uint8"):
        converted(x)
    with pytest.raises(InputError, match="boundary_qparams"):
        converted(input=x)


def test_the_grids_travel_with_copies() -> None:
    _, converted, data = quantized([0], [0], "onednn")
    grids = fq.boundary_qparams(converted)
    given = (grids.input(0).quantize(data[0][0]), data[0][1])
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert fq.boundary_qparams(other) == grids
        assert torch.equal(other(*given)[0], converted(*given)[0])


def test_an_input_that_nothing_quantizes_gets_a_quantizer() -> None:
    model, data = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4)).eval(), [torch.randn(4, 8) for _ in range(3)]
    prepared = fq.prepare_fx(model, MAPPING, (data[0],), {"input_quantized_idxs": [0]})
    converted = fq.convert_fx(fq.calibrate(prepared, data))
    assert sqnr_db(model(data[0]), converted(fq.boundary_qparams(converted).input(0).quantize(data[0]))) > 25


def test_a_position_that_does_not_exist_is_an_error() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    for key in ("input_quantized_indexes", "output_quantized_indexes"):
        with pytest.raises(ConfigError, match=r"names .* 3; the model has 1"):
            fq.prepare_fx(model, MAPPING, (x,), {key: [3]})


def test_an_integer_input_cannot_be_named() -> None:
    model, x = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4)).eval(), torch.tensor([1, 2])
    with pytest.raises(ConfigError, match="input 0 is no float tensor"):
        fq.prepare_fx(model, MAPPING, (x,), {"input_quantized_indexes": [0]})


def test_grids_are_known_after_conversion_only() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    prepared = fq.prepare_fx(model, MAPPING, (x,), {"input_quantized_indexes": [0]})
    with pytest.raises(StageError, match="after conversion"):
        fq.boundary_qparams(prepared)
    with pytest.raises(StageError, match="output 0 has no integer grid"):
        fq.boundary_qparams(fq.quantize(model, [x])).output(0)


def test_dynamic_quantization_has_no_grid_to_agree_on() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    mapping = fq.QConfigMapping().set_global(fq.default_dynamic_qconfig)
    with pytest.raises(ConfigError, match="static spec"):
        fq.prepare_fx(model, mapping, (x,), {"input_quantized_indexes": [0]})


def test_a_model_that_is_no_single_graph_has_no_integer_boundary() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if float(x.sum()) > 0 else x

    with pytest.raises(ConfigError, match="as one graph"):
        fq.prepare_fx(Branch().eval(), MAPPING, (torch.ones(2, 4),), {"input_quantized_indexes": [0]})
