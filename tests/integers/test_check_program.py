"""A program from files of others: refused at load, or an error of ours at the call."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fq
from forge.mutate import mutate_json
from zoo import ZOO


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    prepared = fq.prepare_fx(ZOO["plain"].build().eval(), fq.get_default_qconfig_mapping("npu"), (x,), target="npu")
    prepared(x)
    folder = fq.dump_integers(fq.convert_to_reference_fx(prepared), tmp_path_factory.mktemp("dump"))
    return folder, json.loads((folder / "program.json").read_text())


def attempt(folder: Path, program: Any) -> str:
    (folder / "program.json").write_text(json.dumps(program))
    try:
        reference = fq.integer_reference(folder)
    except fq.ArchiveError as error:
        return str(error)
    try:
        reference(torch.zeros(2, 3, 16, 16))
    except fq.errors.FxQuantError as error:
        return str(error)
    return "ran"


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (("steps", 0, "inputs"), ["nothing"], "reads what was not computed"),
        (("steps", 0, "inputs"), [["x"]], "is not a dump"),
        (("steps", 0, "constants"), {"weight": "nothing"}, "constants that are not there"),
        (("steps", 0, "attributes"), 5, "no names with values"),
        (("outputs", 0, "tensor"), "nothing", "was not computed"),
        (("inputs", 0, "axis"), "0", "the axis of"),
        (("inputs", 0, "zero_point"), None, "has no grid"),
        (("inputs", 0, "low"), 10**30, "has no grid"),
        (("inputs", 0, "rounding"), "up", "is rounded by 'up'"),
        (("inputs", 0, "scale"), [], "has no scale"),
        (("inputs", 0, "scale"), ["1", "1"], "several scales"),
    ],
)
def test_what_a_program_may_not_say(dumped: tuple[Path, Any], at: tuple[Any, ...], value: object, says: str) -> None:
    folder, program = dumped
    changed = json.loads(json.dumps(program))
    *path, last = at
    place = changed
    for key in path:
        place = place[key]
    place[last] = value
    assert says in attempt(folder, changed)


def test_nothing_but_our_errors_comes_of_changed_programs(dumped: tuple[Path, Any]) -> None:
    folder, program = dumped
    assert attempt(folder, program) == "ran"
    for seed in range(150):
        changed = json.loads(json.dumps(program))
        mutate_json(changed, random.Random(seed))
        attempt(folder, changed)
