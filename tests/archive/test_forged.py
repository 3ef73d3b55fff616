"""A part of the forged files, each load and call in another process; `make fuzz` tries all of them and many more."""

from __future__ import annotations

import os
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import fxquant as fq
from forge.by_values import by_values
from forge.crafted import crafted
from forge.defaults import of_defaults
from forge.files import File, forged, inputs, read, write, write_bases
from forge.growth import rows
from forge.lies import of_lies
from forge.run import crafted_cases, mutated_cases, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("forged")
    write_bases(made)
    return made


@pytest.fixture(scope="module")
def bases(folder: Path) -> dict[str, File]:
    return {path.stem: read(path) for path in sorted(folder.glob("*.fq"))}


def test_there_are_many() -> None:
    assert len(crafted()) >= 300


def test_sizes_by_values_and_many_operands_are_refused_at_load(tmp_path: Path, bases: dict[str, File]) -> None:
    checked = ("pixel_shuffle", "kthvalue", "select", "narrow", "roll", "diagonal", "split")  # by torch, in the call
    for name, base, change in by_values():
        if name.endswith((".item", "of many", "tolist", "mul", "dimensions")) and not any(
            f"torch.{word} " in name for word in checked
        ):
            path = tmp_path / "evil.fq"
            write(forged(bases[base], change), path)
            with pytest.raises(fq.ArchiveError, match=r"read from the values|more than 64|more values|dimensions"):
                fq.load(path, engine="reference")


def test_files_are_refused_before_an_engine_is_asked(
    folder: Path, bases: dict[str, File], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what one engine says of a file at load, all say; the forging tool does not ask the others."""
    asked: list[object] = []

    def ask(model: object, engine: object) -> object:
        asked.append(engine)
        return model

    monkeypatch.setattr("fxquant.api.apply_engine", ask)
    engines = ("reference", "onednn", None, "auto")
    refused = 0
    for _, _, write_file in islice(crafted_cases(folder, bases), 0, None, 60):
        path, messages = write_file(), []
        for engine in engines:
            try:
                fq.load(path, engine=engine)
            except fq.ArchiveError as error:
                messages.append(str(error))
        assert len(asked) in (0, len(engines))
        assert not messages or (len(messages) == len(engines) and len(set(messages)) == 1 and not asked)
        refused += bool(messages)
        asked.clear()
    assert refused > 10


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    """Nobody writes to the pipe, and a device has no end."""
    os.mkfifo(tmp_path / "pipe.fq")
    for path in (tmp_path / "pipe.fq", Path("/dev/zero")):
        with pytest.raises(fq.ArchiveError, match="no plain file"):
            fq.load(path)


@torch.no_grad()
def test_calls_that_are_measured_are_not_the_first(bases: dict[str, File], tmp_path: Path) -> None:
    """Those of "auto" go by an example, with all arguments; what a call of the user's raises is the file's as well."""
    change = next(change for name, _, change in of_defaults() if name.endswith("torch.div rounds to trunc"))
    write(forged(bases["conv"], change), tmp_path / "measured.fq")
    model = fq.load(tmp_path / "measured.fq", engine="auto")
    with pytest.raises(fq.ArchiveError, match="first call"):
        model(inputs("conv"))


@torch.no_grad()
@pytest.mark.parametrize("lie", list(of_lies()), ids=lambda lie: lie[0])
def test_what_a_file_records_is_no_proof_of_sizes(lie: Any, bases: dict[str, File], tmp_path: Path) -> None:
    """Batch norms and resizes of torch read behind a tensor that has less than the file says of it."""
    _, base, change = lie
    write(forged(bases[base], change), tmp_path / "lie.fq")
    with pytest.raises(fq.ArchiveError):
        fq.load(tmp_path / "lie.fq", engine="reference")(inputs(base))


def test_scales_along_another_axis_are_refused_at_load(folder: Path, bases: dict[str, File], tmp_path: Path) -> None:
    """OneDNN took the channels of the weight, whatever the graph said; the reference failed at the call."""
    for axis in (1, -1):

        def turn(file: File, axis: int = axis) -> None:
            file.row("dequantize_per_channel")[3][4] = axis

        write(forged(bases["conv"], turn), tmp_path / "turned.fq")
        with pytest.raises(fq.ArchiveError, match=r"axis|channels"):
            fq.load(tmp_path / "turned.fq", engine="reference")


@pytest.mark.parametrize("value", [0, 6, 2**31, ["node", "n"]])
@pytest.mark.parametrize("name", ["dtype", "layout", "memory_format", "device"])
def test_dtypes_of_ops_are_no_numbers(name: str, value: object, bases: dict[str, File], tmp_path: Path) -> None:
    """Torch looks in its tables for the dtype of that number, and reads memory, or crashes, if there is none."""

    def number(file: File) -> None:
        word = "clone" if name == "memory_format" else "zeros_like"
        op, x = f"torch.ops.aten.{word}.default", ["node", "input_1"]
        rows(file, ("n", ".size", [x, 0]), ("m", op, [x]))
        file.row(op)[4] = ["dict", [name, value]]

    write(forged(bases["linear"], number), tmp_path / "numbers.fq")
    with pytest.raises(fq.ArchiveError, match=rf"{name}=.* is no (torch\.)?{name}"):
        fq.load(tmp_path / "numbers.fq", engine="reference")


@pytest.mark.parametrize("word", ["torch.div", "torch.ops.aten.div.Tensor_mode", "torch.ops.aten.div_.Tensor_mode"])
@pytest.mark.parametrize("divisor", ["data", -1, 3])
def test_integers_are_divided_towards_zero_by_whatever_there_is(
    word: str, divisor: object, bases: dict[str, File], tmp_path: Path
) -> None:
    """Torch ends the process where it divides the lowest by it, rounding towards zero."""

    def divide(file: File) -> None:
        file.tensors.update(evil=torch.full((4,), -(2**63)), other=torch.full((4,), -1))
        made = [["get_attr", name, name, ["tuple"], ["dict"], ["dict"]] for name in ("evil", "other")]
        by = ["node", "other"] if divisor == "data" else divisor
        how = ["dict", ["rounding_mode", "trunc"]]
        call = ["call_function", "quotient", word, ["tuple", ["node", "evil"], by], how, ["dict"]]
        file.graph[1:1] = [*made, call]
        file.give("quotient")

    path = tmp_path / "made.fq"
    write(forged(bases["conv"], divide), path)
    model = fq.load(path, engine="reference")
    lowest = -(2**63) // 3 + 1 if divisor == 3 else -(2**63)
    found = model(inputs("conv"))
    assert lowest in [int(leaf.flatten()[0]) for leaf in tree_leaves(found) if leaf.dtype == torch.int64]


@pytest.mark.parametrize("count", [2, ["node", "n"]], ids=["of the file", "of the input"])
def test_weights_of_group_norms_lie_as_they_are_read(count: object, bases: dict[str, File], tmp_path: Path) -> None:
    """Torch reads as many numbers behind the first as there are channels, whatever the strides say."""

    def expand(file: File) -> None:
        x, b = ["node", "input_1"], ["node", "b"]
        made = [("n", ".size", [x, 0]), ("a", "torch.ones", [1]), ("b", ".expand", [["node", "a"], count])]
        made += [("y", ".unsqueeze", [x, 0])]
        rows(file, *made, ("m", "torch.ops.aten.native_group_norm.default", [["node", "y"], b, b, 1, 2, 64, 1, 1e-5]))

    write(forged(bases["linear"], expand), tmp_path / "norm.fq")
    with pytest.raises(fq.ArchiveError, match="reads b as it lies in memory"):
        fq.load(tmp_path / "norm.fq", engine="reference")


def _empty(file: File) -> None:
    x, size, ends = ["node", "input_1"], ["list", 2, 5], ["node", "ends"]
    made = [("a", "torch.empty", [size]), ("b", "torch.empty_like", [x]), ("c", ".new_empty", [x, size])]
    for index, op in enumerate(("empty.memory_format", "empty_like.default", "new_empty.default")):
        made.append((f"d{index}", f"torch.ops.aten.{op}", [x, size][(index == 0) : 1 + (index != 1)]))
    made += [("y", "torch.zeros", [["list", 2, 64, 8]]), ("w", "torch.zeros", [["list", 2, 2, 64]])]
    made += [("one", ".int", [["node", "e"]]), ("ends", ".expand", [["node", "one"], 2])]  # two numbers in one place
    made += [("g0", "torch._grouped_mm", [x, ["node", "y"], ends])]
    made += [("g1", "torch.ops.aten._grouped_mm.default", [["node", "w"], ["node", "t"], ends])]
    made += [("all", "tuple", [["list", *(["node", name] for name in ("a", "b", "c", "d0", "d1", "d2", "g0", "g1"))]])]
    made[6:6] = [("e", "torch.zeros", [1]), ("t", "torch.zeros", [["list", 64, 8]])]
    rows(file, *made)
    assert file.row("aten.empty.memory_format")[3] == ["tuple", size]
    file.row("aten.empty.memory_format")[4] = ["dict", ["memory_format", ["torch", "contiguous_format"]]]


@torch.no_grad()
@pytest.mark.parametrize("engine", ["reference", "onednn", "native"])
def test_files_do_not_see_memory_that_nothing_wrote(engine: str, bases: dict[str, File], tmp_path: Path) -> None:
    write(forged(bases["linear"], _empty), tmp_path / "empty.fq")
    model = fq.load(tmp_path / "empty.fq", engine=engine)
    for _ in range(3):
        held = [torch.full(shape, 7.0) for shape in ((2, 5), (2, 8), (2, 64)) for _ in range(9)]
        del held
        *_, made = model(inputs("linear"))
        assert len(made) == 8 and not any(each.any() for each in made)
    fq.save(model, tmp_path / "again.fq")
    fq.save(fq.load(tmp_path / "again.fq"), tmp_path / "third.fq")
    assert (tmp_path / "again.fq").read_bytes() == (tmp_path / "third.fq").read_bytes()


@pytest.mark.parametrize("name", ["quantizers._1.scale", "0.weight", "0.weight_scale"])
def test_graphs_do_not_write_to_what_was_checked(name: str, bases: dict[str, File], tmp_path: Path) -> None:
    """Through a view of it, too; else the second call would find a scale that is none."""

    def fill(file: File) -> None:
        rows(file, ("w", f"@{name}", []), ("v", ".view", [["node", "w"], -1]), ("m", ".zero_", [["node", "v"]]))

    write(forged(bases["conv"], fill), tmp_path / "writing.fq")
    with pytest.raises(fq.ArchiveError, match="writes to"):
        fq.load(tmp_path / "writing.fq", engine="reference")


def test_nothing_but_an_error_comes_of_a_forged_file(folder: Path, bases: dict[str, File]) -> None:
    some = islice(crafted_cases(folder, bases), 0, None, 20)
    counts, faults = run(chain(some, mutated_cases(folder, bases, 40, seed=1)), folder, ["reference", "onednn"])
    assert not faults
    assert counts["reference: refused"] + counts["reference: refused at the call"] > 0.7 * counts["files"]
