"""What a search found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fxquant.tables.present import Shown, new_table
from fxquant.tuning.trial import Trial

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("trial", "plan", "score", "drop", "passed", "time", "size", "seconds")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TuneResult(Shown):
    """The model that was found, its trial, and all trials in their order; printing it shows a table.

    `passed` says whether it is within the tolerance. If no trial was, `model` is the most accurate one.
    """

    model: nn.Module
    best: Trial
    base: float
    limit: float
    passed: bool
    trials: tuple[Trial, ...]
    stopped: str

    @property
    def summary(self) -> str:
        """One line."""
        drop = f"{self.best.score:.6g} of the float model's {self.base:.6g} (drop {self.best.drop:.3g}"
        bounds = "" if self.best.low is None else f", {self.best.low:.3g} to {self.best.high:.3g}"
        verdict = (
            "within the tolerance" if self.passed else f"NOT within the tolerance of {self.limit:.3g}; the best found"
        )
        return (
            f"{drop}{bounds}): {verdict}. Predicted time {self.best.time:.2f}, size {self.best.size:.2f} of float. "
            f"{len(self.trials)} trial{'s' * (len(self.trials) != 1)}; stopped: {self.stopped}. Plan: {self.best.plan}."
        )

    def table(self) -> Table:
        """Return the trials as a rich table."""
        table = new_table(self.summary, _COLUMNS, whole=_COLUMNS[:1], right=_COLUMNS[2:])
        for number, trial in enumerate(self.trials, 1):
            passed = "error" if trial.error else "yes" if trial.passed else "no"
            samples = "" if trial.complete else f" ({trial.samples} samples)"
            values = (
                f"{trial.score:.6g}{samples}",
                f"{trial.drop:.3g}",
                passed,
                f"{trial.time:.2f}",
                f"{trial.size:.2f}",
            )
            table.add_row(str(number), str(trial.plan), *values, f"{trial.seconds:.2f}")
        return table

    def parts(self) -> tuple[Table]:
        """Return the table."""
        return (self.table(),)
