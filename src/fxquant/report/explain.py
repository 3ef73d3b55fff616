"""The Decision of each node: int8 or float, the rule that won, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from torch import nn

from fxquant.core.graph import regions, scope_path
from fxquant.core.plan import decision_of, note_of
from fxquant.errors import StageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One node. `group` is the anchor of its kernel, `inputs` and `output` are the quantizer ids, `where` a line."""

    region: str
    node: str
    path: str
    kind: str
    status: str
    reason: str
    rule: str
    group: str
    weight: str
    inputs: tuple[str | None, ...]
    output: str | None
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The rows of all regions; printing it shows a table."""

    rows: tuple[Row, ...]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def counts(self) -> dict[str, int]:
        """How many nodes have each status."""
        return dict(Counter(row.status for row in self.rows))

    def table(self) -> Table:
        """The rows as a rich table."""
        table = Table(title=self.summary(), title_justify="left", box=None, pad_edge=False)
        for column in ("node", "path", "kind", "runs in", "rule", "why"):
            table.add_column(column, overflow="fold")
        for row in self.rows:
            style = "yellow" if row.status == "float" else ""
            table.add_row(row.node, row.path, row.kind, row.status, row.rule, row.reason, style=style)
        return table

    def summary(self) -> str:
        counts = self.counts()
        return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) + f" of {len(self.rows)} ops"

    def __str__(self) -> str:
        console = Console(width=140, no_color=True, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    def __rich__(self) -> Table:
        return self.table()


def explain(model: nn.Module) -> Explanation:
    """What was decided for each node of a prepared or converted model, and why."""
    found = list(regions(model))
    if not any(region._region.stage in ("prepared", "converted") for _, region in found):
        raise StageError("explain needs a model from prepare_fx, convert_fx or quantize.")
    rows = []
    for path, region in found:
        for node in region.graph.nodes:
            decision, note = decision_of(node), note_of(node)
            if decision is None:
                continue
            rows.append(
                Row(
                    region=path,
                    node=node.name,
                    path=scope_path(node),
                    kind=decision.kind,
                    status=decision.status,
                    reason=decision.reason,
                    rule=decision.rule,
                    group=note.group or "" if note is not None else "",
                    weight=str(note.weight) if note is not None and note.weight is not None else "",
                    inputs=note.inputs if note is not None else (),
                    output=note.output if note is not None else None,
                    where=str(node.meta.get("where", "")),
                )
            )
    return Explanation(rows=tuple(rows))
