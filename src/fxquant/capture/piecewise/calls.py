"""One run of a model on its example inputs, watched: what each submodule is called with, and who uses whose weights.

This is how submodules of a model that does not trace get example inputs of their own, and how weights are found that
code outside their module reads (tied weights, `F.linear(x, self.embed.weight)`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fxquant.capture.run_untraced import call, copy_inputs, evaluating, untouched
from fxquant.capture.source_lines import locate, reason, reason_of
from fxquant.capture.untouched.snapshot import Ground
from fxquant.errors import CaptureError
from fxquant.graph import torch_compat
from fxquant.graph.paths import join_path
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage

_MOST_CALLS = 4  # calls of one module that are kept, to check a region against
# what may be asked of a weight without using its values; its dtype is not among them, since integers have another
_HARMLESS = frozenset(("shape", "device", "ndim", "requires_grad", "is_leaf", "layout", "is_cuda", "is_meta", "grad"))
_HARMLESS_METHODS = frozenset(("size", "dim", "numel", "__len__", "stride", "is_contiguous", "is_floating_point"))


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, and whether torch.autocast was on."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cast: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A torch function called on a parameter by the code of a module."""

    function: Any
    args: tuple[Any, ...]  # the parameter itself, plain values, and whatever else was given
    kwargs: dict[str, Any]
    user: str  # path of the module whose code it is
    inside: bool  # a module that owns the parameter was running
    owned: bool  # that module itself owns it, perhaps by another name than the first


@dataclass(kw_only=True, slots=True)
class Calls:
    """What a run saw. By the first path of a module (`first` leads there from any path): its calls; the uses of its
    parameters.

    `stateful` names the plain attributes that the run changed, by module.
    """

    first: dict[str, str]
    calls: dict[str, list[Call]] = field(default_factory=dict)
    uses: dict[str, list[Use]] = field(default_factory=dict)  # by the first name of the parameter
    owners: dict[str, set[str]] = field(default_factory=dict)  # the modules that hold a parameter, likewise
    stateful: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[bool, Any] = field(default_factory=dict)  # by the mode: whether the model was training

    def calls_of(self, path: str) -> list[Call]:
        return self.calls.get(self.first.get(path, path), [])


def record_calls(tree: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], ground: Ground | None) -> Calls:
    """Run a clone of the user's model (it is left as it was) and write down what happens.

    A model in train mode is run in both modes; it may well take the example inputs in one of them only.
    """
    paths = {id(module): path for path, module in tree.named_modules()}
    first = {path: paths[id(module)] for path, module in tree.named_modules(remove_duplicate=False)}
    recording = Calls(first=first)
    for training in (False, True) if tree.training else (False,):
        watch = _Watch(tree, recording)
        with evaluating(tree, not training), untouched(tree, ground) as before:
            try:
                with _hooked(tree, recording, watch.running), watch:
                    recording.outputs[training] = call(tree, args, kwargs)
            except Exception as error:
                failed, (where, path) = error, locate(error, tree)
            for at, names in before.changed().items():
                recording.stateful.setdefault(at, []).extend(names)
    if not recording.outputs:
        at = f". At {where}." if where else "."
        text = f"the model itself fails on the example inputs: {reason(failed)}{at} Pass others."
        raise CaptureError(text, why=reason_of(failed), where=where, path=path) from failed
    return recording


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a module holds itself: parameters, buffers and plain attributes, by name."""
    for table in (module._parameters, module._buffers, module.__dict__):
        yield from ((name, value) for name, value in table.items() if isinstance(value, Tensor))


def named_tensors(tree: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return those of a whole tree, each by the first path that leads to it."""
    seen: set[int] = set()
    for path, module in tree.named_modules():
        for name, value in own_tensors(module):
            if id(value) not in seen:
                seen.add(id(value))
                yield join_path(path, name), value


def hookable(tree: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose calls can be watched: none inside of what is quantized already, which would run slower.

    TorchScript takes no hooks.
    """
    done = [region for _, region in regions(tree) if stage_of(region) is Stage.CONVERTED]
    inside = {id(part) for region in done for part in region.modules() if part is not region}
    for path, module in tree.named_modules():
        if id(module) not in inside and not torch_compat.is_scripted(module):
            yield path, module


@contextlib.contextmanager
def _hooked(tree: nn.Module, recording: Calls, running: list[str]) -> Iterator[None]:
    handles = []
    earlier = {path: len(calls) for path, calls in recording.calls.items()}
    for path, module in hookable(tree):

        def enter(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], path: str = path) -> None:
            running.append(path)
            calls = recording.calls.setdefault(path, [])
            if len(calls) - earlier.get(path, 0) < _MOST_CALLS:
                calls.append(Call(copy_inputs(args), copy_inputs(kwargs), bool(torch_compat.autocasting())))

        def leave(module: nn.Module, args: object, output: object) -> None:
            running.pop()

        handles.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Watch(TorchFunctionMode):
    """Notes every torch function that gets a tensor of a module. `running` is the stack of modules, by path."""

    def __init__(self, tree: nn.Module, recording: Calls) -> None:
        super().__init__()
        self.recording = recording
        self.running: list[str] = []
        self.names = {id(tensor): name for name, tensor in named_tensors(tree)}
        self.owners: dict[int, set[str]] = {}
        for path, module in tree.named_modules():
            for _, tensor in own_tensors(module):
                self.owners.setdefault(id(tensor), set()).add(path)
        recording.owners.update({self.names[key]: paths for key, paths in self.owners.items()})

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self.running and not _is_harmless(func):
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor) and id(leaf) in self.names:
                    self._note(leaf, func, args, kwargs)
        return func(*args, **kwargs)

    def _note(
        self, parameter: Tensor, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        uses = self.recording.uses.setdefault(self.names[id(parameter)], [])
        owners, user = self.owners[id(parameter)], self.running[-1]
        inside = not owners.isdisjoint(self.running)
        light_args, light_kwargs = pytree.tree_map(self._light, (args, kwargs))
        light = {"args": light_args, "kwargs": light_kwargs}
        uses.append(Use(function=func, **light, user=user, inside=inside, owned=user in owners))

    def _light(self, leaf: object) -> object:
        """Activations as their sizes and dtypes, so that they are not kept alive."""
        if isinstance(leaf, Tensor) and id(leaf) not in self.names:
            return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        return leaf


def _is_harmless(func: Callable[..., object]) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") in _HARMLESS
    return name in _HARMLESS_METHODS
