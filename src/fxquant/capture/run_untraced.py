"""Run a model without a trace, and compare outputs.

Running a model may change its buffers (batch norm, counters), all that its code keeps in Python, the random state and
its inputs; `run` undoes all that.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from fxquant.capture.untouched.other_random import put_back, start_over
from fxquant.capture.untouched.snapshot import Ground, Snapshot

Inputs = TypeVar("Inputs")

# the containers in which fx.Interpreter returns lists and dicts
_IMMUTABLE: Mapping[type, type] = {immutable_list: list, immutable_dict: dict}

_COARSE = 0.01  # of the largest value


@contextlib.contextmanager
def untouched(model: nn.Module, ground: Ground | None = None) -> Iterator[Snapshot]:
    """Put back at the end what the model's code may have written to, and the random state.

    `ground` is what is known of that code already.
    """
    before = Snapshot(model, ground=ground)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=_cuda_devices(model)), put_back():
            seed(model)
            yield before
    finally:
        before.restore()


def seed(model: nn.Module) -> None:
    """Start the random numbers over, on the CPU and where a model is: those of other devices stay the user's."""
    _seed(_cuda_devices(model), 0)


def _seed(devices: list[int], number: int) -> None:
    """Seed them; `torch.manual_seed` would reach all devices, and takes longer than a call of a small model."""
    start_over(number)
    torch.default_generator.manual_seed(number)
    for device in devices:
        torch.cuda.default_generators[device].manual_seed(number)


class Draws:
    """The same random numbers for two forms of a model, which else would be compared by numbers of their own."""

    def __init__(self, model: nn.Module) -> None:
        self._devices = _cuda_devices(model)

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Let a call draw the numbers that go by `number`; the user's go on where they were."""
        with torch.random.fork_rng(devices=self._devices), put_back():
            _seed(self._devices, number)
            yield


def _cuda_devices(model: nn.Module) -> list[int]:
    if not torch.cuda.is_initialized():  # then there are no tensors there, and models have many
        return []
    tensors = itertools.chain(model.parameters(), model.buffers())
    return sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})


@contextlib.contextmanager
def evaluating(model: nn.Module, really: bool = True) -> Iterator[None]:
    """Put a model in eval mode; the modes of all modules come back at the end."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        if really:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def run(
    model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], ground: Ground | None = None
) -> object:
    """Run a model on copies of the inputs, from a fixed seed, and leave it as it was."""
    with untouched(model, ground):
        return call(model, args, kwargs)


def call(model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """Call a model with copies of the inputs."""
    return model(*copy_inputs(args), **copy_inputs(dict(kwargs)))


@contextlib.contextmanager
def trying() -> Iterator[None]:
    """Keep from the user what runs that may well fail print: warnings, and the graph that torch shows."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def copy_inputs(value: Inputs) -> Inputs:
    """Return a copy that a run may change: tensors, the containers around them, and objects such as caches."""
    copied: Inputs = pytree.tree_map(_copy_leaf, value)
    return copied


def _copy_leaf(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if isinstance(leaf, (bool, int, float, complex, str, bytes, type(None), nn.Module)):
        return leaf
    try:
        return copy.deepcopy(leaf)
    except Exception:  # open files, locks, generators: there is only the one
        return leaf


def apart(value: Inputs) -> Inputs:
    """Return inputs in which no tensor stands twice: torch.export reads the one for both, in every later call, too."""
    seen: set[int] = set()

    def once(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        seen.add(id(leaf))
        return leaf

    made: Inputs = pytree.tree_map(once, value)
    return made


def difference(ours: Any, theirs: object, name: str = "output", *, coarse: bool = False) -> str | None:
    """Return what differs between two outputs, or None; containers are compared item by item.

    With `coarse`, values may differ by what other kernels lead to in deep networks.
    """
    if _IMMUTABLE.get(type(ours), type(ours)) is not type(theirs):
        return f"{name} is a {type(ours).__name__} instead of a {type(theirs).__name__}"
    if isinstance(theirs, torch.Tensor):
        return _tensor_difference(ours, theirs, name, coarse)
    if isinstance(theirs, Mapping):
        if list(ours) != list(theirs):
            return f"{name} has the keys {list(ours)} instead of {list(theirs)}"
        pairs = [(f"{name}[{key!r}]", ours[key], theirs[key]) for key in theirs]
    elif isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{name} has {len(ours)} items instead of {len(theirs)}"
        pairs = [(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    elif dataclasses.is_dataclass(theirs):
        fields = [field.name for field in dataclasses.fields(theirs)]
        pairs = [(f"{name}.{f}", getattr(ours, f), getattr(theirs, f)) for f in fields]
    else:
        plain = isinstance(theirs, (bool, str, type(None)) if coarse else (bool, int, float, str, type(None)))
        return f"{name} is {ours!r} instead of {theirs!r}" if plain and ours != theirs else None
    return next((found for label, a, b in pairs if (found := difference(a, b, label, coarse=coarse))), None)


def _tensor_difference(ours: torch.Tensor, theirs: torch.Tensor, name: str, coarse: bool) -> str | None:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{name} is {ours.dtype} {tuple(ours.shape)} instead of {theirs.dtype} {tuple(theirs.shape)}"
    if torch.equal(ours, theirs) or theirs.numel() == 0 or (coarse and not theirs.is_floating_point()):
        return None
    if not theirs.is_floating_point():
        return None if theirs.is_complex() and torch.allclose(ours, theirs, equal_nan=True) else f"{name} differs"
    finite = theirs[theirs.isfinite()].abs()
    # kernels may round differently by memory format, so a few steps of the dtype, relative to the largest value
    steps = max(_COARSE if coarse else 0.0, 64 * torch.finfo(theirs.dtype).eps)
    tolerance = steps * (float(finite.max()) if finite.numel() else 1.0)
    if torch.allclose(ours, theirs, rtol=0.0, atol=tolerance, equal_nan=True):
        return None
    return f"{name} differs by up to {float((ours - theirs).abs().nan_to_num(float('inf')).max()):.3g}"
