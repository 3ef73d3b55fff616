"""Without a terminal nothing is shown, and the data goes through."""

from __future__ import annotations

import pytest

from fxquant.progress import following, steps


@pytest.mark.parametrize("wanted", [True, False])
def test_the_first_batches_go_through(wanted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(following(range(5), "work", wanted=wanted, most=3)) == [0, 1, 2]
    assert list(following(iter("ab"), "work", wanted=wanted)) == ["a", "b"]
    with steps("work", 2, wanted=wanted) as step:
        step("first")
    assert capsys.readouterr() == ("", "")
