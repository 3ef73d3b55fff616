"""A program run in NumPy, step by step, on int64."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fxquant.errors import ConfigError, FxQuantError, InputError
from fxquant.integers.dump import load_program
from fxquant.integers.program import Array, Port, Program
from fxquant.integers.read import read_program
from fxquant.integers.steps import SIZED, STEPS


def integer_reference(model: nn.Module | str | os.PathLike[str], example_inputs: object = None) -> IntegerReference:
    """Return a converted model, or the directory of its dump, as a function that computes with integers alone.

    `example_inputs` fix the sizes other than the batch; without them, those are as in calibration. See
    docs/integers.md.

    Example:
        >>> reference = fq.integer_reference(fq.quantize(model, loader, target="generic"), loader[0])
    """
    if isinstance(model, nn.Module):
        return IntegerReference(read_program(model, example_inputs, caller="integer_reference"))
    return IntegerReference(load_program(model))


class IntegerReference:
    """Call it like the model. Inputs in float are rounded to their grids first; results are given in float32.

    `run` goes from integers to integers, and `tensors` gives those of every step, to compare with a device's.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @property
    def notes(self) -> tuple[str, ...]:
        """Where results may differ from the simulation in float; empty if they are equal bit by bit."""
        return self.program.notes

    def __call__(self, *args: object, **kwargs: object) -> Array | tuple[Array, ...]:
        """Return the model's results; one array, or a tuple of them."""
        found = self.run(*(self._integers(port, value) for port, value in self._arguments(args, kwargs)))
        results = []
        for at, port in enumerate(self.program.outputs):
            with _fitting(port, found[at].shape):
                results.append(dequantize(port, found[at]))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, *inputs: Array) -> list[Array]:
        """Return the integers of the outputs, from those of the inputs in the order of `program.inputs`."""
        values = self.tensors(*inputs)
        return [values[port.tensor] for port in self.program.outputs]

    def tensors(self, *inputs: Array) -> dict[str, Array]:
        """Return the integers of every tensor of the program, by name."""
        ports = self.program.inputs
        if len(inputs) != len(ports):
            raise ConfigError(f"the program has {len(ports)} inputs ({_names(ports)}); {len(inputs)} were given.")
        values: dict[str, Array] = {}
        sized = next((step for step in self.program.steps if step.op in SIZED), None)
        for port, value in zip(ports, inputs, strict=True):
            values[port.tensor] = _checked(port, value)
            if sized is not None and not _has_sizes(port, value):
                raise InputError(
                    f"{port.name!r} is {np.shape(value)}, and was {_shown(port)} in the example. Step {sized.output!r} "
                    f"({sized.op}) is written for those sizes: make a reference of the model with such example_inputs."
                )
        for step in self.program.steps:
            given = [values[name] for name in step.inputs]
            constants = {role: self.program.constants[name] for role, name in step.constants.items()}
            try:
                values[step.output] = STEPS[step.op](given, constants, step.attributes)
            except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
                shapes = ", ".join(str(value.shape) for value in given)
                why = str(error) if isinstance(error, (ValueError, OverflowError)) else repr(error)
                raise FxQuantError(
                    f"step {step.output!r} ({step.op}, of {step.source!r}) failed on {shapes}: {why}. Sizes other "
                    "than the batch are those of the example inputs."
                ) from error
        return values

    def _arguments(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[tuple[Port, object]]:
        names = list(dict.fromkeys(port.name for port in self.program.inputs))
        if len(args) > len(names) or set(kwargs) - set(names[len(args) :]) or len(args) + len(kwargs) != len(names):
            raise ConfigError(f"the program takes {_names(self.program.inputs)}; give each of these once.")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return [(port, given[port.name]) for port in self.program.inputs]

    def _integers(self, port: Port, value: object) -> Array:
        tensor = torch.as_tensor(np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value))
        if not tensor.is_floating_point():
            return tensor.numpy()
        with _fitting(port, tensor.shape):
            return quantize(port, tensor)


@contextlib.contextmanager
def _fitting(port: Port, shape: Sequence[int]) -> Iterator[None]:
    """Say which tensor it is whose scales are not those of its axis, or no numbers of float32."""
    try:
        yield
    except (ArithmeticError, IndexError, ValueError) as error:
        raise FxQuantError(f"{port.name!r} is {tuple(shape)}, which does not fit its scales: {error}.") from error


def quantize(port: Port, x: Tensor) -> Array:
    """Return the integers of an input: the one place where floats come in, rounded as the model rounds them."""
    scale = np.array([float(each) for each in port.scale], np.float32)
    if port.axis is not None:
        scale = scale.reshape(-1, *(1,) * (x.dim() - 1 - port.axis))
    steps = x.float().numpy() * (np.float32(1.0) / scale)
    down = np.floor(steps)
    if port.rounding == "half_even":
        rounded = np.rint(steps)
    else:
        rounded = down + (steps - down >= 0.5) if port.rounding == "half_up" else down
    found = np.clip(rounded + port.zero_point, port.low, port.high)
    integers: Array = np.where(np.isnan(found), 0, found).astype(np.int64)  # as torch casts NaN
    return integers


def dequantize(port: Port, values: Array) -> Array:
    """Return what integers stand for, as float32."""
    above = np.array([float(each.numerator) for each in port.scale])
    below = np.array([float(each.denominator) for each in port.scale])
    shape = (-1, *(1,) * (values.ndim - 1 - port.axis)) if port.axis is not None else (1,) * values.ndim
    real = (values - port.zero_point) * above.reshape(shape) / below.reshape(shape)
    return np.asarray(real, np.float32)


def _checked(port: Port, value: Array) -> Array:
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(f"{port.name!r} is {array.dtype}; `run` takes integers. Call the reference to give floats.")
    if array.size and not port.low <= int(array.min()) <= int(array.max()) <= port.high:
        raise ConfigError(f"{port.name!r} has integers outside of its grid, [{port.low}, {port.high}].")
    return array.astype(np.int64)


def _has_sizes(port: Port, value: Array) -> bool:
    """Tell whether an input has the sizes of the example, but for the batch."""
    sizes = np.shape(value)
    return port.shape is None or (
        len(sizes) == len(port.shape)
        and all(wanted in (None, size) for wanted, size in zip(port.shape, sizes, strict=True))
    )


def _shown(port: Port) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in port.shape or ())})"


def _names(ports: tuple[Port, ...]) -> str:
    return ", ".join(repr(name) for name in dict.fromkeys(port.name for port in ports))
