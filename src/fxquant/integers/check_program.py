"""What has to hold of a program that was read from files: types, names that are there, grids that are grids."""

from __future__ import annotations

from collections.abc import Mapping

from fxquant.integers.program import Port, Program

_ROUNDINGS = ("half_even", "half_up", "floor")
_MOST_AXES = 32
_LARGEST = 2**31


def check_program(program: Program) -> None:
    """Raise ValueError or TypeError if steps read what is not there, or ports are no grids."""
    for port in (*program.inputs, *program.outputs):
        _check_port(port)
    known = {port.tensor for port in program.inputs}
    for step in program.steps:
        _need(isinstance(step.output, str) and isinstance(step.source, str), f"the step {step.output!r} has no name")
        _need(all(name in known for name in step.inputs), f"the step {step.output!r} reads what was not computed")
        for table in (step.constants, step.attributes):
            _need(isinstance(table, Mapping), f"the step {step.output!r} has {table!r:.40}, no names with values")
        there = all(name in program.constants for name in step.constants.values())
        _need(there, f"the step {step.output!r} reads constants that are not there")
        known.add(step.output)
    _need(all(port.tensor in known for port in program.outputs), "an output was not computed")
    _need(all(isinstance(note, str) for note in program.notes), "a note is no text")


def _check_port(port: Port) -> None:
    _need(all(isinstance(text, str) for text in (port.name, port.tensor, port.dtype)), "a port has no name")
    _need(port.rounding in _ROUNDINGS, f"{port.name!r} is rounded by {port.rounding!r:.40}")
    whole = (port.zero_point, port.low, port.high)
    _need(all(type(number) is int and abs(number) <= _LARGEST for number in whole), f"{port.name!r} has no grid")
    _need(port.low <= port.high, f"the grid of {port.name!r} ends before it begins")
    sizes = port.shape or ()
    _need(all(size is None or type(size) is int for size in sizes), f"{port.name!r} has the shape {sizes!r:.40}")
    _need(len(port.scale) > 0 and all(scale > 0 for scale in port.scale), f"{port.name!r} has no scale")
    if port.axis is None:
        _need(len(port.scale) == 1, f"{port.name!r} has several scales, and no axis")
    else:
        _need(type(port.axis) is int and 0 <= port.axis < _MOST_AXES, f"the axis of {port.name!r} is {port.axis!r:.40}")


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
