"""What `explain` gives: the rows of all nodes, what was left in float, and how that is shown."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

from fxquant.errors import ConfigError
from fxquant.graph.notes import Status
from fxquant.graph.paths import name_place
from fxquant.graph.tree import Left
from fxquant.ops.table import OPS
from fxquant.tables.present import Shown, new_table

if TYPE_CHECKING:
    from rich.table import Table

_SHORT = 24  # a part of a reason up to here is repeated
_BETWEEN = "; "  # parts of a reason: the spec, and what algorithms and engines say of the op
_LEFT, _LEFT_COLUMNS = "left in float, outside of the graphs", ("module", "class", "why", "where", "what to do")


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

    @property
    def is_weighted(self) -> bool:
        op = OPS.by_kind.get(self.kind)
        return op is not None and op.has_weight


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Explanation(Shown):
    """The rows of all regions, and the modules outside of them; printing it shows tables.

    `left` are modules that stay in float, each with the reason, the line of code and a hint. `opaque` counts the
    weighted ops inside modules that no graph looks into, by path. `boundaries` counts the float tensors that go in and
    out of regions. `remarks` are what else there is to say of a module, with its path.
    """

    rows: tuple[Row, ...]
    left: tuple[Left, ...] = ()
    opaque: tuple[tuple[str, int], ...] = ()
    regions: tuple[str, ...] = ()
    boundaries: int = 0
    method: str = ""
    remarks: tuple[tuple[str, str], ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def counts(self) -> dict[str, int]:
        """Tell how many nodes have each status."""
        return dict(Counter(row.status for row in self.rows))

    def weighted(self) -> tuple[int, int]:
        """(weighted ops with int8 weights or better, all weighted ops), in regions and outside."""
        idle = {left.path for left in self.left if not left.reached}  # on an arm that no data took
        found = [row for row in self.rows if row.is_weighted and not (row.status == "float" and row.path in idle)]
        quantized = sum(row.status not in ("float", "float16") for row in found)
        return quantized, len(found) + sum(count for _, count in self.opaque)

    @property
    def int8_share(self) -> float:
        """The share of the weighted ops that are quantized, from 0 to 1."""
        quantized, every = self.weighted()
        return quantized / every if every else 1.0

    def table(self, *, only: str | None = None) -> Table:
        """Return the rows as a rich table, those in float first. `only="float"`, or another status, shows those alone.

        What several rows give as a reason is written once, below the table.
        """
        rows, columns, _ = self._shown(only)
        title = self.summary() if rows or only is None else f"no op is {only}: {self.summary()}"
        table = new_table(title, columns, whole=("path", "op", "runs in", "rule"))
        for row in rows:
            table.add_row(*row)
        return table

    def _shown(self, only: str | None) -> tuple[list[tuple[str, ...]], tuple[str, ...], list[str]]:
        """Cells, the names of the columns, and the lines below."""
        known = {row.status for row in self.rows}
        if only is not None and only not in known | {*get_args(Status)}:
            raise ConfigError(f"only={only!r} is no status. Known: {', '.join(get_args(Status))}.")
        rows = [row for row in self.rows if only in (None, row.status)]
        rows.sort(key=lambda row: row.status != "float")
        places = {(row.region, row.node): place_of(row) for row in self.rows}
        reasons = [_reason(row, places).split(_BETWEEN) for row in rows]
        every = Counter(part for parts in reasons for part in parts)
        often = [part for part, count in every.items() if count > 1 and len(part) > _SHORT]
        notes = {part: f"({number})" for number, part in enumerate(often, 1)}
        told = [_BETWEEN.join(notes.get(part, part) for part in parts) for parts in reasons]
        one_rule = len({row.rule for row in rows}) < 2
        cells = [
            (places[row.region, row.node], row.kind, row.status, *(() if one_rule else (row.rule,)), why)
            for row, why in zip(rows, told, strict=True)
        ]
        columns = ("path", "op", "runs in", *(() if one_rule else ("rule",)), "why")
        return cells, columns, [f"{number} {part}" for part, number in notes.items()]

    def left_table(self) -> Table:
        """Return the modules left in float as a rich table."""
        table = new_table(_LEFT, _LEFT_COLUMNS, whole=("module", "class", "where"))
        for left in self.left:
            table.add_row(*_left_cells(left))
        return table

    def summary(self) -> str:
        """Return one line."""
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))
        quantized, every = self.weighted()
        share = f"{quantized} of {every} weighted ops quantized ({self.int8_share:.0%})"
        if not every and not quantized:
            share = "nothing to quantize: no op has weights"
        parts = f"{len(self.regions)} region{'s' * (len(self.regions) != 1)}"
        if self.boundaries:
            parts += f" with {self.boundaries} float boundaries"
        return f"{counts or 'nothing'} of {len(self.rows)} ops; {share}; {parts}"

    def to_dict(self) -> dict[str, object]:
        """Return all of it, plain."""
        rows, left = [asdict(row) for row in self.rows], [asdict(each) for each in self.left]
        return {"summary": self.summary(), "int8_share": self.int8_share, "rows": rows, "left": left}

    def parts(self) -> list[Table | str]:
        """Return the table with its notes, what was left in float, and remarks on regions."""
        remarks = [f"{path or '<root>'}: {text}" for path, text in self.remarks]
        return [self.table(), *self._shown(None)[2], *([self.left_table()] if self.left else []), *remarks]


def place_of(row: Row) -> str:
    """Return the module of an op; with the name of the node, for one that is not a module by itself."""
    return name_place(row.region, row.path, row.node, row.is_weighted)


def _reason(row: Row, places: dict[tuple[str, str], str]) -> str:
    """Return the reason, with the place of the op into which it is fused instead of the name of a node."""
    fused = f"fused into {row.group}"
    if not row.reason.startswith(fused):
        return row.reason
    return f"fused into {places.get((row.region, row.group), row.group)}{row.reason[len(fused) :]}"


def _left_cells(left: Left) -> tuple[str, ...]:
    return (left.path or "<root>", left.module, left.reason, _short(left.where), left.hint)


def _short(where: str) -> str:
    """`file.py:12 in forward`, without the directories."""
    head, _, rest = where.partition(":")
    return f"{os.path.basename(head)}:{rest}" if rest else where
