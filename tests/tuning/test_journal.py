"""The workspace of a search: lines that are on the disk, a half line that is dropped, another run that is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from fxquant.errors import ConfigError
from fxquant.tuning.journal import TRIALS, Journal, fingerprint
from fxquant.tuning.plan import Plan
from fxquant.tuning.trial import Trial


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"model": "m"})
    journal.add({"kind": "base", "value": 0.5})
    journal.add({"kind": "trial", **Trial(plan=Plan(mode="dynamic")).to_json()})
    with open(tmp_path / TRIALS, "ab") as file:
        file.write(b'{"kind": "tri')
    again = Journal(tmp_path, {"model": "m"})
    assert again.find("base") == {"kind": "base", "value": 0.5}
    assert list(again.by_plan()) == ['{"mode": "dynamic"}']
    assert (tmp_path / TRIALS).read_bytes().endswith(b"\n")


def test_another_run_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path, {"model": "m"})
    with pytest.raises(ConfigError, match="model differs"):
        Journal(tmp_path, {"model": "other"})


_TRIAL = {"kind": "trial", **Trial(plan=Plan(mode="dynamic"), score=1.0, drop=0.0, passed=True).to_json()}


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "trial"},
        {"kind": "spell"},
        {"kind": "base", "value": "high"},
        {"kind": "base", "value": 1.0, "samples": ["x"]},
        {**_TRIAL, "plan": []},
        {**_TRIAL, "plan": {"lift": [["a", "b"]]}},
        {**_TRIAL, "plan": {"mode": "dynamic", "evil": 1}},
        {**_TRIAL, "passed": "yes"},
        {**_TRIAL, "score": "1"},
        {name: value for name, value in _TRIAL.items() if name != "drop"},
    ],
)
def test_a_line_that_no_search_writes_is_refused(tmp_path: Path, line: dict[str, object]) -> None:
    Journal(tmp_path, {}).add(_TRIAL)
    assert len(Journal(tmp_path, {}).lines) == 2
    with open(tmp_path / TRIALS, "a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match="damaged at byte"):
        Journal(tmp_path, {})


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    journal = Journal(None, {"model": "m"})
    journal.add({"kind": "base", "value": 1.0})
    assert journal.find("base") is not None and not list(tmp_path.iterdir())


def test_a_fingerprint_sees_weights_and_classes() -> None:
    one = nn.Linear(2, 2)
    same = nn.Linear(2, 2)
    same.load_state_dict(one.state_dict())
    assert fingerprint(one) == fingerprint(same) != fingerprint(nn.Linear(2, 2))
