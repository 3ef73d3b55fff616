"""Do again what was done, only if something else can come of it: exports and sessions of runtimes, by what they are of.

An export takes a second, and many models that are tried one after the other are the same to a runtime.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from fxquant.archive import archive
from fxquant.engines.runtimes import onnxruntime, openvino, runtime


class Once:
    """A function that is called once for a key: each call gets a copy of what it gave, or raised."""

    def __init__(
        self, function: Callable[..., Any], key: Callable[..., Any], copied: Callable[[Any], Any], most: int = 10**9
    ) -> None:
        self.function, self.key, self.copied, self.most = function, key, copied, most
        self.known: dict[Any, tuple[Any, Exception | None]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self.key(*args, **kwargs)
        if key not in self.known:
            if len(self.known) >= self.most:
                del self.known[next(iter(self.known))]
            try:
                self.known[key] = (self.function(*args, **kwargs), None)
            except Exception as error:
                self.known[key] = (None, error)
        made, error = self.known[key]
        if error is not None:
            raise error
        return self.copied(made)


def _copy_export(made: Any) -> Any:
    """A graph of ONNX, which runtimes change, and its signature."""
    import onnx_ir as ir

    graph, signature = made
    return ir.serde.deserialize_model(ir.serde.serialize_model(graph)), copy.deepcopy(signature)


def _said_by(region: Any, args: Any, kwargs: Any = None, **how: Any) -> tuple[Any, ...]:
    """What an export depends on: graph, modules and modes, tensors, example inputs."""
    tensors = dict((*region.named_parameters(), *region.named_buffers()))
    digest = archive._digest(f"{region} {region.graph} {region.training}", {n: t.detach() for n, t in tensors.items()})
    given = [tuple(leaf.shape) for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
    return how["dynamic_batch"], how["gemm"], digest, tuple(given)


EXPORT = Once(runtime.to_onnx, _said_by, _copy_export, most=200)


def _call(self: Any, opened: Once, threads: int) -> Any:
    return opened(self, threads)


def share_runtimes(put: Callable[[Any, str, Any], None] = setattr, sessions: int = 100) -> None:
    """Export and open the same graph once; sessions are not changed by their runs. `put` sets an attribute."""
    put(runtime, "to_onnx", EXPORT)
    for kind in (onnxruntime.OnnxRuntime, openvino.OpenVino):

        def key(self: Any, threads: int) -> tuple[Any, ...]:
            return self.onnx_bytes, threads, self.alone, getattr(self, "wide", None), getattr(self, "snippets", None)

        opened = Once(kind._open, key, lambda made: made, most=sessions)
        put(kind, "_open", functools.partialmethod(_call, opened))
