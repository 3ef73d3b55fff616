"""What every runtime's engine has to do: agree with the reference at any batch size, also when copied or pickled."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import fxquant as fq
from fxquant.engines.runtimes.runtime import Runtime
from fxquant.numerics.affine import sqnr_db
from zoo import ZOO


def repeat(count: int, x: Tensor) -> Tensor:
    return torch.cat([x] * count)


def check_agreement(engine_class: type[Runtime], name: str, target: str | None = None) -> None:
    entry = ZOO[name]
    args, kwargs = entry.inputs(), entry.kwargs()
    reference = fq.quantize(
        entry.build(), [args or kwargs], example_inputs=args, example_kwargs=kwargs, engine="reference", target=target
    )
    engine = engine_class(reference, args, kwargs)
    for twin in (engine, copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        for count in (1, 3):
            more, more_kwargs = tree_map(partial(repeat, count), (args, kwargs))
            expected, spec = tree_flatten(reference(*more, **more_kwargs))
            actual, actual_spec = tree_flatten(twin(*more, **more_kwargs))
            assert actual_spec == spec
            for left, right in zip(expected, actual, strict=True):
                assert left.shape == right.shape
                assert sqnr_db(left.detach(), right) > 50
