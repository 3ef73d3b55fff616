"""Between a Python call and the flat list of tensors that other runtimes take and give."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fxquant.errors import ConfigError
from fxquant.graph.interpret import plain


@dataclass(frozen=True, slots=True)
class Fixed:
    """A leaf that is no tensor: its value in the example is part of the graph."""

    value: Any


@dataclass(frozen=True, slots=True)
class Number:
    """A leaf of a result that is a number, at an index among the tensors."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """How a model was called in its example, and what it returned.

    `inputs` is (args, kwargs) and `outputs` the result, with the index of a tensor in place of each tensor. `plain`
    tensors by position, and nothing else, make the same call; None if that cannot be said.
    """

    parameters: inspect.Signature
    inputs: Any
    outputs: Any
    plain: int | None

    def flatten(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Tensor]:
        """Return the tensors of a call, in the order of the graph's inputs."""
        tensors = [x for x in args if isinstance(x, Tensor)]
        if not kwargs and len(args) == len(tensors) == self.plain:
            return tensors  # by far the most common; the rest costs some 50 microseconds
        leaves, spec = tree_flatten(bind(self.parameters, args, kwargs))
        known, known_spec = tree_flatten(self.inputs)
        if spec != known_spec:
            raise ConfigError(
                f"the call has another structure than the example inputs: {spec} instead of {known_spec}. "
                "Pass the same arguments, or convert again with example inputs like these."
            )
        for leaf, example in zip(leaves, known, strict=True):
            _check_leaf(leaf, example)
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def unflatten(self, tensors: list[Tensor]) -> object:
        """Return what the model returns, from the graph's outputs."""
        if isinstance(self.outputs, int):
            return tensors[self.outputs]
        return tree_map(lambda leaf: _leaf(leaf, tensors), self.outputs)


def _leaf(leaf: int | Fixed | Number, tensors: list[Tensor]) -> object:
    if isinstance(leaf, Number):
        return tensors[leaf.index].item()
    return leaf.value if isinstance(leaf, Fixed) else tensors[leaf]


def _check_leaf(leaf: object, example: int | Fixed) -> None:
    if isinstance(example, Fixed):
        if isinstance(leaf, Tensor) or leaf != example.value:
            shown = "a tensor" if isinstance(leaf, Tensor) else repr(leaf)
            raise ConfigError(f"an argument is fixed to {example.value!r} by the example inputs; now it is {shown}.")
    elif not isinstance(leaf, Tensor):
        raise ConfigError(f"an argument was a tensor in the example inputs; now it is {leaf!r}.")


def parameters_of(model: nn.Module) -> inspect.Signature:
    """Return the parameters of `forward`, without annotations, so that they pickle."""
    signature = inspect.signature(model.forward)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(plain)


def bind(
    parameters: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the call with every argument, by position where that can be, in the order of the parameters."""
    try:
        bound = parameters.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"the inputs do not fit forward{parameters}: {error}.") from error
    bound.apply_defaults()
    return bound.args, bound.kwargs


def signature_of(parameters: inspect.Signature, example: object, program: torch.export.ExportedProgram) -> Signature:
    """Return the signature of an exported program that was called with `example`."""
    leaves, in_spec = tree_flatten(example)
    results = [spec.arg for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    out_spec = program.call_spec.out_spec
    assert out_spec is not None
    inputs = tree_unflatten(_index([(isinstance(leaf, Tensor), leaf) for leaf in leaves]), in_spec)
    indexed = _index([(not isinstance(arg, ConstantArgument), getattr(arg, "value", None)) for arg in results])
    outputs = [
        Number(at) if isinstance(at, int) and not isinstance(arg, TensorArgument) else at
        for at, arg in zip(indexed, results, strict=True)
    ]
    return Signature(
        parameters=parameters,
        inputs=inputs,
        outputs=plain(tree_unflatten(outputs, out_spec)),
        plain=_count_plain(parameters, *inputs),
    )


def _count_plain(parameters: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> int | None:
    """Tell how many tensors by position make the example's call, if all other arguments have their defaults."""
    count = next((at for at, arg in enumerate(args) if arg != at), len(args))
    try:
        rest = bind(parameters, tuple(range(count)), {})
    except ConfigError:
        return None
    return count if tree_map(_value, (args, kwargs)) == rest else None


def _value(leaf: int | Fixed) -> object:
    return leaf.value if isinstance(leaf, Fixed) else leaf


def _index(leaves: list[tuple[bool, object]]) -> list[int | Fixed]:
    rows: list[int | Fixed] = []
    count = 0
    for is_tensor, value in leaves:
        rows.append(count if is_tensor else Fixed(value))
        count += is_tensor
    return rows
