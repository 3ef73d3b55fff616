"""Which ops of a float model a target will run, and which rule of it refuses the others; before any calibration."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from fxquant.capture.run_untraced import evaluating
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.passes.refuse import rule_in
from fxquant.quantize_fx import prepare_fx
from fxquant.tables.explain import explain
from fxquant.tables.explanation import Explanation
from fxquant.tables.present import Shown, new_table
from fxquant.targets import by_name

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("node", "path", "kind", "runs on", "refused by", "why")
CODE, GRAPH = "code", "graph"  # what is no rule of a target: code outside of graphs, and neighbours or the op itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """One op: whether the device runs it; if not, the rule (a field of Target, "graph" or "code") and the reason."""

    node: str
    path: str
    kind: str
    on_device: bool
    rule: str
    reason: str
    where: str


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Forecast(Shown):
    """All ops of a model; printing it shows a table."""

    spare: ClassVar[tuple[str, ...]] = ("node",)
    target: str
    rows: tuple[Placed, ...]

    def __iter__(self) -> Iterator[Placed]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def refused(self) -> tuple[Placed, ...]:
        """The ops that fall back."""
        return tuple(row for row in self.rows if not row.on_device)

    def summary(self) -> str:
        """Return one line."""
        there = len(self.rows) - len(self.refused)
        why = ", ".join(f"{count} by {rule}" for rule, count in Counter(row.rule for row in self.refused).most_common())
        return f"target {self.target}: {there} of {len(self.rows)} ops on the device" + (
            f"; refused: {why}" if why else ""
        )

    def to_json(self) -> str:
        """Return the same as JSON."""
        return json.dumps({"target": self.target, "ops": [asdict(row) for row in self.rows]}, indent=1)

    def table(self) -> Table:
        """Return the ops as a rich table."""
        table = new_table(self.summary(), _COLUMNS, whole=_COLUMNS[:-1])
        for row in self.rows:
            place, style = ("device", "") if row.on_device else ("host", "yellow")
            table.add_row(row.node, row.path or f"({row.node})", row.kind, place, row.rule, row.reason, style=style)
        return table

    def parts(self) -> tuple[Table]:
        """Return the table."""
        return (self.table(),)


def forecast(
    model: nn.Module,
    target: Target | str,
    example_inputs: object = None,
    *,
    qconfig_mapping: object = None,
    example_kwargs: Mapping[str, object] | None = None,
) -> Forecast:
    """Tell where each op of a float model will run on a target, with the target's own qconfig or a `qconfig_mapping`.

    `target` is a name or a `Target`. The model is captured with `example_inputs` and `example_kwargs`, as for
    `prepare_fx`, whose values do not matter. It is not changed.

    Example:
        >>> found = fq.forecast(model, "tflite", (loader[0],))
        >>> all(placed.on_device for placed in found.rows)
        True
    """
    hardware = by_name(target)
    if example_inputs is None and not example_kwargs:
        raise ConfigError(
            "forecast follows a model's tensors, and needs inputs to start from: fq.forecast(model, target, (x,)), or "
            "example_kwargs={...}. Their values do not matter: torch.zeros of the right size will do."
        )
    with evaluating(model), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="nothing in ")  # the rows say so
        prepared = prepare_fx(
            model,
            {"": hardware.qconfig} if qconfig_mapping is None else qconfig_mapping,
            () if example_inputs is None else example_inputs,
            example_kwargs=example_kwargs,
            target=hardware,
        )
    return Forecast(target=hardware.name, rows=placed(explain(prepared)))


def placed(account: Explanation) -> tuple[Placed, ...]:
    """Tell where each op runs, from the account of a prepared or converted model."""
    rows = [
        Placed(
            node=row.node,
            path=row.path,
            kind=row.kind,
            on_device=row.status == "int8",
            rule="" if row.status == "int8" else rule_in(row.reason) or GRAPH,
            reason=row.reason,
            where=row.where,
        )
        for row in account
    ]
    known = {row.path for row in rows}
    for left in account.left:
        if left.path not in known:
            kind = left.module
            rows.append(
                Placed(
                    node="", path=left.path, kind=kind, on_device=False, rule=CODE, reason=left.reason, where=left.where
                )
            )
    return tuple(rows)
