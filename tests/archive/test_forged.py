"""A part of the forged files, each load and call in another process; `make fuzz` tries all of them and many more."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import pytest

import fxquant as fq
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


def test_files_are_refused_before_an_engine_is_asked(
    folder: Path, bases: dict[str, File], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what one engine says of a file at load, all say; the forging tool does not ask the others."""
    asked: list[object] = []
    monkeypatch.setattr("fxquant.api.apply_engine", lambda model, engine: asked.append(engine))
    engines = ("reference", "onednn", None, "auto")
    refused = 0
    for _, _, write in islice(crafted_cases(folder, bases), 0, None, 60):
        path, messages = write(), []
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


def test_nothing_but_an_error_comes_of_a_forged_file(folder: Path, bases: dict[str, File]) -> None:
    some = islice(crafted_cases(folder, bases), 0, None, 10)
    counts, faults = run(chain(some, mutated_cases(folder, bases, 60, seed=1)), folder, ["reference", "onednn"])
    assert not faults
    assert counts["reference: refused"] + counts["reference: refused at the call"] > 0.7 * counts["files"]
