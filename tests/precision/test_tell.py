"""What is said of changes that would help: in whose time, and not of gains beyond what a prediction can know."""

from __future__ import annotations

import pytest

from fxquant.graph.amendments import Amendments
from fxquant.precision.check import Check
from fxquant.precision.outputs import OutputRow
from fxquant.precision.steps import Step
from fxquant.precision.tell import tell


def found(db: float) -> Check:
    return Check(outputs=(OutputRow(name="y", sqnr=db, cosine=0.9, max_error=1.0),), least=20.0, batches=1)


def wanted(after: float, *names: str) -> Step:
    return Step(amendments=Amendments(), before=1.0, after=after, slower=0.01, names=names)


@pytest.mark.parametrize(
    ("step", "lifted", "said"),
    [
        (wanted(0.1, "a"), (), r"is 3.0 dB .* Lifting a is predicted to gain 10 dB for 1% more time than int8:"),
        (wanted(0.0, "a", "b"), (), "Lifting a, b is predicted to gain more than 40 dB for 1% more time than int8:"),
        (wanted(0.1, "b", "c"), ("a",), "Lifting b, c, too, is predicted to gain 10 dB for 1% more time than now:"),
    ],
    ids=["one", "all that is known", "after others"],
)
def test_what_would_help(step: Step, lifted: tuple[str, ...], said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        tell(found(3.0), found(12.0 if lifted else 3.0), lifted, step, True)
