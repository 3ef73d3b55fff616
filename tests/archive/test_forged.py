"""A part of the forged files, each load and call in another process; `make fuzz` tries all of them and many more."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import pytest

from forge.crafted import crafted
from forge.files import File, read, write_bases
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


def test_nothing_but_an_error_comes_of_a_forged_file(folder: Path, bases: dict[str, File]) -> None:
    some = islice(crafted_cases(folder, bases), 0, None, 10)
    counts, faults = run(chain(some, mutated_cases(folder, bases, 60, seed=1)), folder, ["reference", "onednn"])
    assert not faults
    assert counts["reference: refused"] + counts["reference: refused at the call"] > 0.7 * counts["files"]
