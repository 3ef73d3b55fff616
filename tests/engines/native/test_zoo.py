"""The native engine runs every model of the zoo, and agrees with the reference at any batch."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

import fxquant as fq
from fxquant.engines.choose import apply_engine
from fxquant.graph.region import lowering_of, regions
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO

pytest.importorskip("llvmlite")


def repeat(count: int, x: Tensor) -> Tensor:
    return torch.cat([x] * count)


def reference_and_native(name: str) -> tuple[nn.Module, nn.Module, Any]:
    entry = ZOO[name]
    args, kwargs = entry.inputs(), entry.kwargs()
    reference = fq.quantize(
        entry.build(), [args or kwargs], example_inputs=args, example_kwargs=kwargs, engine="reference"
    )
    return reference, apply_engine(copy.deepcopy(reference), fq.Native(cache=None)), (args, kwargs)


def runs_native(model: nn.Module) -> bool:
    return all(lowering_of(region).runner.engine == "native" for _, region in regions(model))


@pytest.mark.broad
@pytest.mark.parametrize("name", ZOO)
def test_agrees_with_the_reference(name: str) -> None:
    reference, native, inputs = reference_and_native(name)
    assert runs_native(native)
    for twin in (native, copy.deepcopy(native)):
        for count in (1, 3):
            args, kwargs = tree_map(partial(repeat, count), inputs)
            expected, spec = tree_flatten(reference(*args, **kwargs))
            for _ in range(2):
                actual, actual_spec = tree_flatten(twin(*args, **kwargs))
                assert actual_spec == spec
                for left, right in zip(expected, actual, strict=True):
                    assert left.shape == right.shape and left.dtype == right.dtype
                    assert left.stride() == right.stride() or not runs_native(twin)
                    assert sqnr_db(left.detach(), right) > 30


def test_goes_through_pickle() -> None:
    _, native, (args, _) = reference_and_native("plain")
    twin = pickle.loads(pickle.dumps(native))
    assert torch.equal(twin(*args), native(*args))
    assert torch.equal(twin(*args), native(*args))


def test_says_that_it_is_native() -> None:
    _, native, _ = reference_and_native("plain")
    assert runs_native(native)
    assert "native" in repr(native)
