"""Calls of converted models with inputs that are unlike the example's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.errors import InputError
from fxquant.numerics.affine import sqnr_db


@pytest.mark.parametrize("engine", ["reference", "onednn"])
def test_wrong_channels_and_axes_are_errors_of_the_input(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    quantized = fq.quantize(model, [x], engine=engine, effort="fast")
    for wrong in [torch.randn(2, 4, 8, 8), torch.randn(2, 2, 3, 8, 8), torch.randn(8)]:
        shape = str(tuple(wrong.shape)).replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(InputError, match=rf"'input'\) is float32 {shape}, and was float32 \(2, 3, 8, 8\)"):
            quantized(wrong)
    assert not capsys.readouterr().err  # torch prints the generated code


class Enough(Exception):
    pass


@pytest.mark.parametrize("error", [Enough, ZeroDivisionError, RuntimeError])
def test_errors_of_a_hook_are_its_own(error: type[Exception]) -> None:
    def stop(*_: object) -> None:
        raise error("enough")

    quantized = fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [torch.randn(2, 4)], engine="reference")
    handle = quantized[0].register_forward_hook(stop)
    with pytest.raises(error, match=r"^enough$"):
        quantized(torch.randn(5, 2, 4))
    handle.remove()
    quantized[0].register_forward_hook(lambda m, args, y: torch.nn.functional.linear(y, torch.randn(3, 3)))
    with pytest.raises(RuntimeError, match=r"^(mm: )?mat1 and mat2"):  # of torch, but the hook called it
        quantized(torch.randn(5, 2, 4))


def test_inputs_of_the_dtype_that_a_model_was_moved_to_are_like_the_example() -> None:
    quantized = fq.quantize(nn.Sequential(nn.Linear(4, 4)).eval(), [torch.randn(2, 4)], engine="reference").double()
    with pytest.raises(InputError, match=r"is float64 \(2, 3\), and was float64 \(2, 4\)"):
        quantized(torch.randn(2, 3).double())


class Twice(nn.Module):
    """It takes an argument that its signature does not name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, **options: bool) -> Tensor:
        return self.fc(x) * (2 if options.get("twice") else 1)


def test_an_argument_that_only_the_float_model_takes_is_told() -> None:
    x = torch.randn(3, 4)
    prepared = fq.prepare_fx(Twice().eval(), fq.get_default_qconfig_mapping(), (x,))
    prepared(x)
    for model in (prepared, fq.convert_fx(prepared)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'twice': the model was captured without"):
            model(x, twice=True)
        with pytest.raises(TypeError, match="missing 1 required"):
            model()


class Masked(nn.Module):
    """Adds a mask, if there is one, as encoder layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.a(x)
        return self.b(torch.relu(y if mask is None else y + mask))


class Encoder(nn.Module):
    """Leaves the mask out where nothing is padded, which only the data tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = Masked(), nn.Linear(8, 4)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        mask = None if bool(keep.all()) else (keep - 1) * 9.0
        return self.head(self.layer(x, mask))


@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_a_part_that_gets_none_for_a_tensor_runs_its_code(engine: str) -> None:
    torch.manual_seed(0)
    model, x = Encoder().eval(), torch.randn(8, 8)
    padded, whole = (x, (torch.rand(8, 8) > 0.3).float()), (x, torch.ones(8, 8))
    quantized = fq.quantize(model, [padded], engine=engine)
    for inputs in (padded, whole, padded):
        assert sqnr_db(model(*inputs), quantized(*inputs)) > 25


def test_none_for_a_tensor_is_an_error_of_the_call() -> None:
    quantized = fq.quantize(Masked().eval(), [(torch.randn(4, 8), torch.randn(4, 8))])
    with pytest.raises(InputError, match=r"'mask'.* None"):
        quantized(torch.randn(4, 8), None)
