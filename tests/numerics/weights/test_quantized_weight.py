"""Weights of four bits are two to a byte: in memory, in the state_dict, in the file; and compute as before."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import fxquant as fq
from fxquant.export.reference import reference_of
from fxquant.graph.encode import encode_graph
from fxquant.graph.nibbles import unpack
from fxquant.graph.region import lowering_of
from fxquant.numerics.affine import sqnr_db
from fxquant.numerics.weights.quantized_weight import QuantizedWeight


class Words(nn.Module):
    """A tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 33), nn.Linear(33, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


MODELS: dict[str, tuple[Any, Any]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)), lambda: torch.randn(3, 64)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), lambda: torch.randn(2, 3, 8, 8)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2)), lambda: torch.randn(2, 3, 5, 5)),
    "tied": (Words, lambda: torch.randint(0, 20, (2, 3))),
}
SPECS = {
    "per_channel": fq.Spec(bits=4, granularity="per_channel", observer="minmax"),
    "per_tensor": fq.Spec(bits=3, observer="minmax"),
    "unsigned": fq.Spec(bits=4, signed=False, symmetric=False, granularity="per_channel", observer="minmax"),
}


def quantized(name: str, spec: fq.Spec, mode: str, engine: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, inputs = MODELS[name]
    x = inputs()
    activation = fq.get_default_qconfig("x86").activation if mode == "static" else None
    if name == "transposed" and spec.granularity == "per_channel":
        spec = spec.with_(axis=1)
    mapping = fq.QConfigMapping().set_global(fq.QConfig(activation=activation, weight=spec))
    return fq.quantize(build().eval(), [x], qconfig_mapping=mapping, mode=mode, engine=engine), x


@pytest.mark.broad
@pytest.mark.parametrize("mode", ["static", "weight_only"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", MODELS)
def test_packed_and_equal(name: str, spec: str, mode: str, tmp_path: Path) -> None:
    made, x = quantized(name, SPECS[spec], mode, "reference")
    holders = [part for part in made.modules() if isinstance(part, QuantizedWeight)]
    assert holders and all(h.stored.dtype == torch.uint8 and h.tail is not None for h in holders)
    assert all(2 * h.stored.numel() <= h.integers.numel() + h.stored.shape[0] for h in holders)
    expected = made(x)
    loaded = fq.load(fq.save(made, tmp_path / "m.fq"), engine="reference")
    assert torch.equal(loaded(x), expected) and loaded.state_dict().keys() == made.state_dict().keys()
    assert sqnr_db(expected, fq.load(tmp_path / "m.fq")(x)) > 30
    wide = reference_of(made, "this test")  # an element to each integer, as it was before
    assert all(part.tail is None for part in wide.modules() if isinstance(part, QuantizedWeight))
    with pytest.raises(fq.ArchiveError, match="two to a byte"):  # its graph still says that they are packed
        fq.load(fq.save(wide, tmp_path / "wide.fq"))
    lowering_of(wide).reference = encode_graph(wide.graph)
    assert torch.equal(fq.load(fq.save(wide, tmp_path / "wide.fq"), engine="reference")(x), expected)


def test_a_state_of_wide_integers_loads() -> None:
    made, x = quantized("linear", SPECS["per_channel"], "weight_only", "reference")
    state = copy.deepcopy(made.state_dict())
    for name, tail in (("0.weight", (64,)), ("2.weight", (64,))):
        state[name] = unpack(state[name], tail, True)
    other, _ = quantized("linear", SPECS["per_channel"], "weight_only", "reference")
    for holder in (part for part in other.modules() if isinstance(part, QuantizedWeight)):
        holder.stored.zero_()
    other.load_state_dict(state)
    assert torch.equal(other(x), made(x))


def test_the_file_of_four_bits_is_half_of_eight(tmp_path: Path) -> None:
    model, x = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).eval(), torch.randn(2, 256)
    sizes = {}
    for bits in (4, 8):
        spec = fq.Spec(bits=bits, granularity="per_group", group_size=64, observer="minmax")
        mapping = fq.QConfigMapping().set_global(fq.QConfig(weight=spec))
        made = fq.quantize(model, example_inputs=(x,), qconfig_mapping=mapping, mode="weight_only")
        sizes[bits] = fq.save(made, tmp_path / f"{bits}.fq").stat().st_size
    assert sizes[4] < 0.6 * sizes[8]


class Doubled(nn.Module):
    def forward(self, bias: Tensor) -> Tensor:
        return bias * 2


def test_a_parametrized_layer_can_be_copied() -> None:
    x = torch.randn(4, 8)
    quantized = fq.quantize(nn.Sequential(nn.Linear(8, 4)).eval(), [x], engine="reference")
    before = quantized(x)
    parametrize.register_parametrization(quantized.get_submodule("0"), "bias", Doubled())
    assert not torch.equal(quantized(x), before)
    assert torch.equal(copy.deepcopy(quantized)(x), quantized(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_weight_reads_in_the_dtype_of_its_float_model(dtype: torch.dtype, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval().to(dtype)
    x = torch.randn(4, 8).to(dtype)
    with pytest.warns(UserWarning, match="there are no int8 kernels"):
        quantized = fq.quantize(model, [x])
    for made in (quantized, fq.load(fq.save(quantized, tmp_path / "net.fq"))):
        before = made(x)
        assert made.get_submodule("0").weight.dequantize().dtype == dtype
        made.get_submodule("0").register_forward_hook(lambda module, args, out: None)  # the module runs as it stands
        assert made(x).dtype == dtype
        assert torch.allclose(made(x), before, rtol=0.02, atol=0.02)
