"""Parametrized weights become plain ones in the region, and stay what they are in the model."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune

import fxquant as fq
from fxquant.capture import capture
from fxquant.capture.capture import Method


def old(apply: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    def quiet(module: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return apply(module)

    return quiet


NORMS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old_weight_norm": old(utils.weight_norm),
    "old_spectral_norm": old(utils.spectral_norm),
}


@pytest.mark.parametrize("method", ["symbolic", "export"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_weights_are_baked_on_the_clone_only(norm: str, method: Method, mode: bool) -> None:
    model = nn.Sequential(NORMS[norm](nn.Conv2d(3, 4, 3)), nn.ReLU())
    model(torch.randn(2, 3, 8, 8))
    model.eval()
    keys, x = list(model.state_dict()), torch.randn(2, 3, 8, 8)
    expected = model(x)
    if mode and "spectral" in norm:
        pytest.skip("spectral norm takes a power iteration in train mode, so its weight is not the one that is baked")
    region = capture(model.train(mode), (x,), method=method)
    conv = region.get_submodule("0")
    assert type(conv) is nn.Conv2d
    assert sorted(region.state_dict()) == ["0.bias", "0.weight"]
    assert torch.allclose(region(x), expected, atol=1e-6)
    assert list(model.state_dict()) == keys
    assert parametrize.is_parametrized(model[0]) or norm.startswith("old")
    assert region.get_parameter("0.bias") is model[0].bias
    assert torch.equal(pickle.loads(pickle.dumps(region))(x), region(x))  # the float model does not


def make_pruned() -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.random_unstructured(model[0], "weight", 0.1)  # a container of two
    prune.ln_structured(model[3], "weight", 0.5, n=2, dim=0)
    prune.random_unstructured(model[3], "bias", 0.5)
    return model


@pytest.mark.parametrize("method", ["symbolic", "export"])
def test_pruned_weights_are_quantized_with_their_zeros(method: Method) -> None:
    model, x = make_pruned().eval(), torch.randn(2, 3, 8, 8)
    expected, keys = model(x), list(model.state_dict())
    prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (x,), method=method)
    prepared(x)
    quantized = fq.convert_fx(prepared, engine="reference")
    torch.testing.assert_close(quantized(x), expected, rtol=0.1, atol=0.05)
    for index in (0, 3):
        zeros = model[index].weight_mask == 0
        assert (quantized.get_submodule(str(index)).weight()[zeros] == 0).all()
    assert list(model.state_dict()) == keys
    assert prune.is_pruned(model)
    assert torch.equal(model(x), expected)


def test_training_says_that_it_does_not_keep_masks() -> None:
    model, x = make_pruned().train(), torch.randn(2, 3, 8, 8)
    model(x).sum().backward()
    with pytest.warns(UserWarning, match=r"0\.weight.*masks"):
        prepared = fq.prepare_qat_fx(model, fq.get_default_qat_qconfig_mapping(), (x,))
    assert (prepared.get_parameter("0.weight")[model[0].weight_mask == 0] == 0).all()
    prepared(x).sum().backward()
