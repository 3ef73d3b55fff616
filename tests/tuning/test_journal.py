"""The workspace of a search: lines that are on the disk, a half line that is dropped, another run that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from fxquant.errors import ConfigError
from fxquant.tuning.journal import TRIALS, Journal, fingerprint


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"model": "m"})
    journal.add({"kind": "base", "value": 0.5})
    journal.add({"kind": "trial", "plan": {"mode": "dynamic"}})
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


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    journal = Journal(None, {"model": "m"})
    journal.add({"kind": "base", "value": 1.0})
    assert journal.find("base") is not None and not list(tmp_path.iterdir())


def test_a_fingerprint_sees_weights_and_classes() -> None:
    one = nn.Linear(2, 2)
    same = nn.Linear(2, 2)
    same.load_state_dict(one.state_dict())
    assert fingerprint(one) == fingerprint(same) != fingerprint(nn.Linear(2, 2))
