"""The user's signature as placeholders: names, order and defaults stay, whatever the capture fixed is checked.

`bind` matches the example inputs with `forward`'s parameters and gives one `Slot` per placeholder. `*args` become
`args_0, args_1, ...`, `**kwargs` become their keys. `add_placeholders` writes the slots into a graph and returns for
each the value that the model's code works on: tensors are nodes, all else is the fixed value.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fxquant.capture.guards import check_fixed, check_given, unpack
from fxquant.capture.reasons import Cause
from fxquant.capture.symbolic.given import is_container, open_container
from fxquant.errors import CaptureError

NOTHING = inspect.Parameter.empty
PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format)

# creates a node (or proxy) from op, target, args, kwargs
Create = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One placeholder: how its value is given to `forward`, its default, and its value in the example."""

    name: str
    key: int | str  # position among the positional arguments, or keyword
    value: Any
    default: Any = NOTHING
    given: bool = True


def signature_of(model: nn.Module) -> inspect.Signature:
    return inspect.signature(model.forward)


def bind(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    concrete: Mapping[str, object] = MappingProxyType({}),
) -> tuple[Slot, ...]:
    """Return the slots for a call with these example inputs.

    `concrete` values are given as well, and become defaults.
    """
    signature = signature_of(model)
    kwargs = {**kwargs, **concrete}
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise CaptureError(
            f"the example inputs do not fit {type(model).__name__}.forward{signature}: {error}. "
            "Pass example inputs with which the model itself can be called."
        ) from error
    slots: list[Slot] = []
    position = 0
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            for index, value in enumerate(given.get(name, ())):
                slots.append(Slot(name=f"{name}_{index}", key=position, value=value))
                position += 1
        elif parameter.kind is parameter.VAR_KEYWORD:
            slots.extend(Slot(name=key, key=key, value=value) for key, value in given.get(name, {}).items())
        else:
            key: int | str = position if name in given and name not in kwargs else name
            value, default = given.get(name, parameter.default), concrete.get(name, parameter.default)
            slots.append(Slot(name=name, key=key, value=value, default=default, given=name in given))
            position += isinstance(key, int)
    return tuple(slots)


def bind_defaults(model: nn.Module) -> tuple[Slot, ...]:
    """Return the slots when there is no example.

    Parameters without a default are tensors, the others stay at theirs.
    """
    required = {
        name: torch.empty(0)
        for name, p in signature_of(model).parameters.items()
        if p.default is NOTHING and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    return bind(model, (), required)


def tied_argument(slots: tuple[Slot, ...]) -> str:
    """Return the first argument that calls may leave out, and a graph of this call holds for one way; "" if none is so.

    Arguments that are given their default, as concrete ones are, are meant to stay.
    """
    free = (slot for slot in slots if slot.default is not NOTHING)
    return next((slot.name for slot in free if not (slot.given and slot.value is slot.default)), "")


def as_call(slots: tuple[Slot, ...], values: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Positional and keyword arguments for `forward`, spelled as in the example, from values by slot name."""
    given = [slot for slot in slots if slot.given]
    args = tuple(values[slot.name] for slot in given if isinstance(slot.key, int))
    kwargs = {slot.key: values[slot.name] for slot in given if isinstance(slot.key, str)}
    return args, kwargs


def add_placeholders(create: Create, slots: tuple[Slot, ...], *, lazy: bool = False) -> dict[str, object]:
    """Write placeholders and their checks; by slot name, what the model's code is to see.

    `lazy` containers are looked into when the code does (symbolic/given.py); else their structure is fixed as a whole.
    """
    placeholders: list[tuple[Slot, Any, bool]] = []
    defaults_began = False
    for slot in slots:
        default = slot.default
        if default is not NOTHING and not isinstance(default, PLAIN):
            if slot.given:
                default = NOTHING
            else:
                raise CaptureError(
                    f"argument {slot.name!r} has the default {default!r}, which cannot be part of a graph. "
                    "Give it in the example inputs."
                )
        # Python wants defaults to go to the end, so a required argument after them gets one that is refused when used
        late = default is NOTHING and defaults_began
        defaults_began |= default is not NOTHING
        arguments = (None,) if late else () if default is NOTHING else (default,)
        placeholders.append((slot, create("placeholder", slot.name, arguments, {}), late))
    for slot, node, late in placeholders:
        if isinstance(slot.value, torch.Tensor) and (late or slot.default is not NOTHING):
            create("call_function", check_given, (node, slot.name), {})
    return {slot.name: _open(create, node, slot.name, slot.value, lazy) for slot, node, _ in placeholders}


def _open(create: Create, node: fx.Proxy, name: str, value: object, lazy: bool) -> object:
    spec = pytree.tree_structure(value)
    if isinstance(value, torch.Tensor):
        return node
    if spec.is_leaf() and not is_container(value):
        return _fix(create, node, name, value)
    if lazy and is_container(value):
        return open_container(node, name, value, lambda item, at, inner: _open(create, item, at, inner, lazy))
    try:
        structure = pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        raise CaptureError(f"argument {name!r}: {error}. Pass tensors in tuples, lists or dicts.") from error
    items = create("call_function", unpack, (node, name, structure), {})
    opened = []
    for index, (path, leaf) in enumerate(pytree.tree_flatten_with_path(value)[0]):
        item = create("call_function", operator.getitem, (items, index), {})
        is_tensor = isinstance(leaf, torch.Tensor)
        opened.append(item if is_tensor else _fix(create, item, name + pytree.keystr(path), leaf))
    return pytree.tree_unflatten(opened, spec)


def _fix(create: Create, node: fx.Proxy, name: str, value: object) -> object:
    if not isinstance(value, PLAIN):
        why = Cause.ARGUMENT.because(name=name, cls=type(value).__name__)
        raise CaptureError(
            f"{why.text}. Pass its tensors in tuples, lists or dicts, or register it with "
            "torch.utils._pytree.register_pytree_node.",
            why=why,
        )
    create("call_function", check_fixed, (node, name, value), {})
    return value
