"""A program as a directory: program.json, and its constants in one safetensors file that it names.

The JSON is written last, in one piece, and names a new file: a dump that was there stays whole until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from fxquant.config.check_fields import check_arguments
from fxquant.errors import ArchiveError, ConfigError
from fxquant.files import Json, replacing
from fxquant.integers.check_program import check_program
from fxquant.integers.program import Array, Port, Program, Step
from fxquant.integers.read import read_program
from fxquant.integers.scales import position_of
from fxquant.integers.steps import STEPS

FORMAT, VERSION = "fxquant-integers", 1
_FILE = "program.json"
_FRACTION = re.compile(r"[0-9]{1,1000}(/[0-9]{1,1000})?")


def dump_integers(model: nn.Module, directory: str | os.PathLike[str], example_inputs: object = None) -> Path:
    """Write a converted model as integers: weights, int32 biases, multipliers, shifts, tables and the steps between.

    `directory` is made. `example_inputs` fix the sizes other than the batch; without them, those are as in calibration.
    The layout is in docs/integers.md; `integer_reference(directory)` runs it.

    Example:
        >>> made = fq.dump_integers(fq.quantize(model, loader, target="generic"), "dump", loader[0])
    """
    check_arguments(dump_integers, directory=directory)
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"dump_integers cannot write to {str(folder)!r}: it is a file. Give a directory.")
    return write_program(read_program(model, example_inputs, caller="dump_integers"), folder)


def write_program(program: Program, folder: Path) -> Path:
    """Write a program to a directory, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"dump_integers cannot make {str(folder)!r}: {error.strerror}. Give another.") from error
    data = save({name: np.ascontiguousarray(array) for name, array in program.constants.items()})
    name = f"constants.{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    with replacing(folder / name, ConfigError) as part:
        part.write_bytes(data)
    text = json.dumps(_plain(program, name, hashlib.sha256(data).hexdigest()), indent=1, allow_nan=False)
    with replacing(folder / _FILE, ConfigError) as part:
        part.write_text(text + "\n")
    for old in folder.glob("constants.????????????????.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)
    return folder


def _plain(program: Program, file: str, digest: str) -> Json:
    return {
        "format": FORMAT,
        "version": VERSION,
        "constants": {"file": file, "sha256": digest},
        "exact": program.is_exact,
        "notes": list(program.notes),
        "inputs": [_plain_port(port) for port in program.inputs],
        "outputs": [_plain_port(port) for port in program.outputs],
        "steps": [
            {
                "op": step.op,
                "inputs": list(step.inputs),
                "output": step.output,
                "constants": dict(step.constants),
                "attributes": dict(step.attributes),
                "source": step.source,
            }
            for step in program.steps
        ],
    }


def _plain_port(port: Port) -> Json:
    positions = [position_of(scale) for scale in port.scale]
    return {
        "name": port.name,
        "tensor": port.tensor,
        "scale": [str(scale) for scale in port.scale],
        "position": None if None in positions else positions,
        "axis": port.axis,
        "zero_point": port.zero_point,
        "low": port.low,
        "high": port.high,
        "dtype": port.dtype,
        "rounding": port.rounding,
        "shape": None if port.shape is None else list(port.shape),
    }


def load_program(directory: str | os.PathLike[str]) -> Program:
    """Read what `dump_integers` wrote."""
    folder = Path(directory)
    try:
        found = json.loads((folder / _FILE).read_text())
        data = (folder / Path(found["constants"]["file"]).name).read_bytes()
        if hashlib.sha256(data).hexdigest() != found["constants"]["sha256"]:
            raise ArchiveError(
                f"{str(folder)!r}: the constants are not those that {_FILE} names. Dump the model again."
            )
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise ArchiveError(
                f"{str(folder / _FILE)!r} is {found['format']} {found['version']}, not {FORMAT} {VERSION}."
            )
        return _program(found, load(data))
    except OSError as error:
        raise ArchiveError(f"cannot read a dump in {str(folder)!r}: {error.strerror or error}.") from error
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError, SafetensorError) as error:
        raise ArchiveError(f"{str(folder)!r} is not a dump of dump_integers, or is damaged: {error!r}.") from error


def _program(found: Json, constants: dict[str, Array]) -> Program:
    steps = tuple(Step(**{**step, "inputs": tuple(step["inputs"])}) for step in found["steps"])
    unknown = sorted({step.op for step in steps} - set(STEPS))
    if unknown:
        raise ValueError(f"unknown steps: {', '.join(unknown)}")
    program = Program(
        inputs=tuple(_port(port) for port in found["inputs"]),
        outputs=tuple(_port(port) for port in found["outputs"]),
        steps=steps,
        constants=constants,
        notes=tuple(found["notes"]),
    )
    check_program(program)
    return program


def _port(found: Json) -> Port:
    rest = {name: value for name, value in found.items() if name != "position"}
    shape = found.get("shape")  # older dumps have none
    scale = tuple(_fraction(scale) for scale in found["scale"])
    return Port(**{**rest, "scale": scale, "shape": None if shape is None else tuple(shape)})


def _fraction(text: str) -> Fraction:
    """Return a fraction as `str` writes it: 1e999999999 would be one, too, of as many digits."""
    if not _FRACTION.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no scale")
    return Fraction(text)
