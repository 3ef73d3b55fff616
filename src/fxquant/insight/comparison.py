"""The result of `compare`: a row for each tensor and each weight, as a table, JSON, CSV or HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from fxquant.errors import ConfigError
from fxquant.insight.weights import WeightRow
from fxquant.tables.present import Shown, as_csv, new_table

if TYPE_CHECKING:
    from rich.table import Table

CLIPPED = 0.001  # a share from which calibration is called too narrow
_COLUMNS = (
    "path",
    "op",
    "runs in",
    "SQNR",
    "own",
    "enters",
    "cosine",
    "max error",
    "clipped",
    "to zero",
    "range",
    "calibrated",
    "spread",
)
_WEIGHT_COLUMNS = ("path", "op", "SQNR", "cosine", "max error", "before", "fused", "quantized", "spec")
# give way in a narrow terminal, the last first
_SPARE = ("to zero", "calibrated", "range", "runs in", "quantized", "before", "spread", "max error", "cosine", "spec")
_NUMBERS = ("SQNR", "own", "enters", "cosine", "max error", "clipped", "to zero", "spread")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRow:
    """One tensor, by the module that made it. All is measured on the data that `compare` was given.

    `sqnr`, `cosine` and `max_error` compare the two models there. `own_sqnr` is the error of this op alone, with the
    float model's tensors before it (None where that cannot be told), and `enters` its share in the sum of all such
    errors. `clipped` is the share of the float values outside of the `calibrated` range, and `collapsed` the share
    that is rounded to zero; None where nothing is rounded. `low` and `high` are the float range here, `widened` the
    last of the `batches` that made it wider, `spread` the deviation of its width over the batches, of the mean.
    """

    path: str
    node: str
    region: str
    kind: str
    status: str
    where: str
    sqnr: float
    own_sqnr: float | None
    enters: float
    cosine: float
    max_error: float
    clipped: float | None
    collapsed: float | None
    low: float
    high: float
    calibrated: tuple[float, float] | None
    spread: float
    widened: int
    batches: int

    @property
    def beyond(self) -> str:
        """The tensor, with the share of its values out of the calibrated range, and how far they go."""
        end = max(map(abs, self.calibrated)) if self.calibrated is not None else 0.0
        times = max(abs(self.low), abs(self.high)) / end if end > 0 else 0.0
        far = f", up to {times:.1f} times its end" if times > 1 else ""
        return f"{self.path or self.node} ({self.clipped or 0:.1%}{far})"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Comparison(Shown):
    """Rows in the order of the run. `dead` are quantizers without a grid, with the reason; printing shows tables.

    `output_sqnr` is nan where no output can be compared: integers, or boxes of which each model finds another number.
    """

    spare: ClassVar[tuple[str, ...]] = _SPARE
    rows: tuple[LayerRow, ...]
    weights: tuple[WeightRow, ...]
    output_sqnr: float
    batches: int
    dead: tuple[tuple[str, str], ...] = ()

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> LayerRow:
        """Return the last tensor that the module at a path makes."""
        found = [row for row in self.rows if path in (row.path, row.node)]
        if not found:
            raise ConfigError(f"nothing was compared at {path!r}. The rows have the paths: [row.path for row in ...].")
        return found[-1]

    def weight(self, path: str) -> WeightRow:
        """Return the weight of the module at a path, with its tensors `before`, `fused` and `quantized`."""
        for row in self.weights:
            if row.path == path:
                return row
        raise ConfigError(
            f"{path!r} has no quantized weight. Those with one: {', '.join(r.path for r in self.weights)}."
        )

    def worst(self, count: int = 5) -> tuple[LayerRow, ...]:
        """Tell where most of the error enters."""
        return tuple(sorted(self.rows, key=lambda row: -row.enters)[:count])

    def narrow(self) -> tuple[LayerRow, ...]:
        """Tensors that this data takes out of the range that calibration saw, the worst first."""
        found = [row for row in self.rows if (row.clipped or 0) > CLIPPED]
        return tuple(sorted(found, key=lambda row: -(row.clipped or 0)))

    def summary(self) -> str:
        """Return a few lines: how close the outputs are, where the error enters, whether calibration saw enough."""
        over = f"{self.batches} batch{'es' * (self.batches != 1)}"
        apart = "none that can be compared," if math.isnan(self.output_sqnr) else f"{self.output_sqnr:.1f} dB"
        tensors = f"{len(self.rows)} tensor{'s' * (len(self.rows) != 1)}"
        lines = [f"outputs: {apart} over {over}, {tensors} compared"]
        worst = [f"{row.path or row.node} ({row.enters:.0%})" for row in self.worst(3) if row.enters > 0]
        if worst:
            lines.append(f"most error enters at: {', '.join(worst)}")
        if narrow := self.narrow():
            names = ", ".join(row.beyond for row in narrow[:3])
            lines.append(
                f"{'1 tensor leaves' if len(narrow) == 1 else f'{len(narrow)} tensors leave'} the calibrated range: "
                f"{names}. Calibrate with more data, or with other "
                "data, if that is not what the observer clips on purpose."
            )
        late = [row for row in self.rows if row.batches > 3 and row.widened == row.batches]
        if len(late) > len(self.rows) * self._late_share():
            lines.append(f"{len(late)} ranges still grew in the last batch: this is too little data to calibrate with.")
        lines += [f"no grid: {name} {why}" for name, why in self.dead]
        return "\n".join(lines)

    def _late_share(self) -> float:
        """Return the share of ranges that may grow in the last batch: that of batches alike, and half as many more.

        Of n batches that are alike, the last one has the lowest value in one tensor of n, and so for the highest.
        """
        alike = 1 - (1 - 1 / max(self.batches, 1)) ** 2
        return max(0.25, 1.5 * alike)

    def table(self) -> Table:
        """Return the tensors as a rich table, in the order of the run."""
        title = "dB; own: this op alone; enters: its share of the error"
        table = new_table(title, _COLUMNS, whole=_COLUMNS, right=_NUMBERS)
        for row in self.rows:
            table.add_row(*_cells(row))
        return table

    def weights_table(self) -> Table:
        """Return the weights as a rich table."""
        table = new_table("weights: largest value before and after fusing", _WEIGHT_COLUMNS, whole=_WEIGHT_COLUMNS[:-1])
        for row in self.weights:
            table.add_row(*_weight_cells(row))
        return table

    def to_dict(self) -> dict[str, object]:
        """Return all numbers, plain; the tensors of weights are left out."""
        weights = [
            {"path": row.path, "kind": row.kind, "spec": row.spec, "sqnr": row.sqnr, "cosine": row.cosine}
            | {"max_error": row.max_error, "fused_gain": row.fused_gain}
            for row in self.weights
        ]
        return {
            "output_sqnr": self.output_sqnr,
            "batches": self.batches,
            "dead": dict(self.dead),
            "rows": [asdict(row) for row in self.rows],
            "weights": weights,
        }

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def to_csv(self) -> str:
        """Return a line for each tensor."""
        names = list(LayerRow.__dataclass_fields__)
        return as_csv(names, ([getattr(row, name) for name in names] for row in self.rows))

    def parts(self) -> tuple[str, Table, Table]:
        """Return the summary, and the tables of tensors and of weights."""
        return self.summary(), self.table(), self.weights_table()


def _cells(row: LayerRow) -> Sequence[str]:
    return (
        row.path or f"({row.node})",
        row.kind,
        row.status,
        f"{row.sqnr:.1f}",
        "" if row.own_sqnr is None else f"{row.own_sqnr:.1f}",
        f"{row.enters:.0%}" if row.enters else "",
        f"{row.cosine:.5f}",
        f"{row.max_error:.3g}",
        "" if row.clipped is None else f"{row.clipped:.2%}",
        "" if row.collapsed is None else f"{row.collapsed:.1%}",
        f"{row.low:.3g} .. {row.high:.3g}",
        "" if row.calibrated is None else "{:.3g} .. {:.3g}".format(*row.calibrated),
        f"{row.spread:.0%}",
    )


def _weight_cells(row: WeightRow) -> Sequence[str]:
    largest = (f"{float(tensor.abs().max()):.3g}" for tensor in (row.before, row.fused, row.quantized))
    numbers = (f"{row.sqnr:.1f}", f"{row.cosine:.5f}", f"{row.max_error:.3g}")
    return (row.path, row.kind, *numbers, *largest, row.spec)
