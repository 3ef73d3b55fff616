"""Do again what was done, only if something else can come of it: exports and sessions of runtimes, by what they are of.

An export takes a second, and many models that are tried one after the other are the same to a runtime. torch.export
and its decompositions, most of that second, know no more of tensors than their shapes. So models that differ in values
alone, and the two runtimes, share these.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from fxquant.archive import archive
from fxquant.engines.runtimes import onnxruntime, openvino, runtime
from fxquant.export.onnx import export


class Once:
    """A function that is called once for a key: each call gets a copy of what it gave, or raised.

    Of more than `most` keys, those that were not asked for go.
    """

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
        self.known[key] = made, error = self.known.pop(key)  # the last that goes
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
    return how["dynamic_batch"], how["gemm"], digest, _shapes((args, kwargs)), _own_forwards(region)


def _own_forwards(tree: nn.Module) -> tuple[tuple[str, Any], ...]:
    """What text of a model does not show: forwards put on modules, and other classes of the same name."""
    found = ((path, type(each), each.__dict__.get("forward")) for path, each in tree.named_modules())
    return tuple((path, *rest) for path, *rest in found if not isinstance(tree.get_submodule(path), fx.GraphModule))


def _shapes(value: Any) -> tuple[Any, ...]:
    return tuple((leaf.dtype, leaf.shape, leaf.stride()) for leaf in tree_leaves(value) if torch.is_tensor(leaf))


class Programs:
    """torch.export and torch.onnx's decompositions, once for all models that differ in the values of tensors alone."""

    def __init__(self, most: int = 200) -> None:
        self.passes = importlib.import_module("torch.onnx._internal.exporter._fx_passes")
        same = functools.partial(Once, copied=lambda made: made, most=most)
        self.exported = same(export.export_program, lambda tree, *rest, **how: self.key)
        self.decomposed = same(self.passes.decompose_with_registry, lambda _, table: (self.key, table.opset_version))
        self.key: tuple[Any, ...] = ()

    def export(self, tree: nn.Module, example: Any, caller: str, **how: Any) -> ExportedProgram:
        """`export_program`, with the tensors of this model."""
        tensors = dict(tree.named_parameters(remove_duplicate=False))
        tensors |= dict(tree.named_buffers(remove_duplicate=False))
        first = {id(tensor): name for name, tensor in reversed(tensors.items())}
        form = [(name, first[id(each)], each.requires_grad, _shapes(each)) for name, each in tensors.items()]
        graphs = [str(each.graph) for each in tree.modules() if isinstance(each, fx.GraphModule)]
        modes = [each.training for each in tree.modules()]
        self.key = str(tree), str(graphs), str(modes), str(form), str(how), str(example[1].keys()), _shapes(example)
        self.key += (_own_forwards(tree),)
        return _with(self.exported(tree, example, caller, **how), tensors)

    def decompose(self, program: ExportedProgram, registry: Any) -> ExportedProgram:
        """`decompose_with_registry` of the program that was exported last."""
        return _with(self.decomposed(program, registry), {**program.state_dict, **program.constants})


def _with(made: ExportedProgram, tensors: dict[str, Any]) -> ExportedProgram:
    """A copy of a program that has its own graph, and these tensors."""
    graph = copy.deepcopy(made.graph)
    for own, node in zip(graph.nodes, made.graph.nodes, strict=True):
        own.name = node.name  # the signature goes by it
    module = fx.GraphModule(made.graph_module, graph)
    module.meta.update(made.graph_module.meta)
    return made._update(
        *(module, copy.deepcopy(made.graph_signature)),
        state_dict={name: tensors[name] for name in made.state_dict},
        constants={name: tensors.get(name, value) for name, value in made.constants.items()},
    )


EXPORT = Once(runtime.to_onnx, _said_by, _copy_export, most=200)


def _call(self: Any, opened: Once, threads: int) -> Any:
    return opened(self, threads)


def share_runtimes(put: Callable[[Any, str, Any], None] = setattr, sessions: int = 100) -> None:
    """Export and open the same graph once; sessions are not changed by their runs. `put` sets an attribute."""
    programs = Programs()
    put(export, "export_program", programs.export)
    put(programs.passes, "decompose_with_registry", programs.decompose)
    put(runtime, "to_onnx", EXPORT)
    for kind in (onnxruntime.OnnxRuntime, openvino.OpenVino):

        def key(self: Any, threads: int) -> tuple[Any, ...]:
            return self.onnx_bytes, threads, self.alone, getattr(self, "wide", None), getattr(self, "snippets", None)

        opened = Once(kind._open, key, lambda made: made, most=sessions)
        put(kind, "_open", functools.partialmethod(_call, opened))
