"""`check`: whether a quantized model still answers as the float one does, on data that both are run on."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from fxquant.capture.canonical.as_plain import as_plain
from fxquant.capture.run_untraced import Draws, copy_inputs, evaluating
from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.capture.untouched.written import parameters_kept
from fxquant.config.check_fields import check_arguments
from fxquant.errors import CalibrationError, ConfigError, FxQuantError, StageError
from fxquant.flows.calibrate import check_data
from fxquant.graph.first_call import refuse_waiting
from fxquant.graph.region import regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.tree import tree_of
from fxquant.insight.compare import compare
from fxquant.insight.comparison import Comparison
from fxquant.precision.outputs import Known, OutputRow, Outputs, run_quantized
from fxquant.quantize_fx import convert_to_reference_fx
from fxquant.tables.explain import explain
from fxquant.tables.present import Shown, new_table

if TYPE_CHECKING:
    from rich.table import Table

LEAST = 20.0  # dB at an output: an error of a tenth of its values. Below that, quantize tells and looks for causes
DIFFERS = ", in what differs between samples: the rest of the output is a constant"
_COLUMNS = ("output", "SQNR", "cosine", "max error", "")
_EATEN = 0.5  # a share of values that are rounded to zero, from which a range is said to eat its signal


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Check(Shown):
    """How close the outputs are; printing it shows a table. `passed`: each is within `least` dB, and none is broken.

    `advice` says what would help, where it did not pass.
    """

    outputs: tuple[OutputRow, ...]
    least: float
    batches: int
    advice: tuple[str, ...] = ()

    @property
    def compared(self) -> tuple[OutputRow, ...]:
        """The outputs that could be compared."""
        return tuple(row for row in self.outputs if not row.why)

    @property
    def passed(self) -> bool:
        return bool(self.compared) and not any(row.broken or row.sqnr < self.least for row in self.compared)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def sqnr(self) -> float:
        """Of the worst output, in dB; nan if none could be compared."""
        return min((row.sqnr for row in self.compared), default=math.nan)

    @property
    def cosine(self) -> float:
        """Of the output whose cosine is the least; nan if none could be compared."""
        return min((row.cosine for row in self.compared), default=math.nan)

    @property
    def varying(self) -> bool:
        """Whether the worst output is compared by what differs between samples alone: see `OutputRow`."""
        return any(row.varying and row.sqnr == self.sqnr for row in self.compared)

    def summary(self) -> str:
        """Return one line."""
        if not self.compared:
            return f"not passed: no floating output could be compared over {self.batches} batches"
        word = "passed" if self.passed else "NOT PASSED"
        worst = min(self.compared, key=lambda row: (-row.broken, row.sqnr))
        broken = f", {worst.broken} values are not finite" if worst.broken else ""
        return (
            f"{word}: {worst.name} is {worst.sqnr:.1f} dB from float, cosine {worst.cosine:.5f}"
            f"{DIFFERS if worst.varying else ''}{broken}; at least "
            f"{self.least:g} dB are asked for, over {self.batches} batches"
        )

    def to_dict(self) -> dict[str, object]:
        """Return all of it, plain."""
        return {
            "passed": self.passed,
            "least": self.least,
            "batches": self.batches,
            "outputs": [asdict(row) for row in self.outputs],
            "advice": list(self.advice),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def table(self) -> Table:
        """Return the outputs as a rich table."""
        table = new_table("outputs against the float model's", _COLUMNS, whole=_COLUMNS[:1], right=_COLUMNS[1:4])
        for row in self.outputs:
            table.add_row(*_cells(row))
        return table

    def parts(self) -> tuple[Table | str, ...]:
        """Return the summary, the table, and what would help."""
        return self.summary(), self.table(), *self.advice


def _cells(row: OutputRow) -> Sequence[str]:
    if row.why:
        return (row.name, "", "", "", f"not compared: {row.why}")
    broken = f"{row.broken} values are not finite" if row.broken else ""
    return (row.name, f"{row.sqnr:.1f}", f"{row.cosine:.5f}", f"{row.max_error:.3g}", broken)


def check(
    float_model: nn.Module,
    quantized: nn.Module,
    data: Iterable[object],
    *,
    num_batches: int | None = 4,
    least: float = LEAST,
    concrete_args: Mapping[str, object] | None = None,
) -> Check:
    """Run both models on `data`, batches as for `calibrate`, and say whether the quantized one still answers alike.

    `num_batches` of the data are run. All floating outputs are compared, also in tuples, dicts and dataclasses; each
    has to be within `least` dB. Where a constant that all samples have would hide the error, what differs between
    samples counts (`OutputRow`). A converted model runs on its engine as it is; one that is calibrated, trained or
    frozen is converted for it. Both models stay as they are. Where it does not pass, `advice` says which tensors cause
    it and what would help.

        result = fq.check(model, quantized, loader)
        assert result.passed, result

    Example:
        >>> fq.check(model, fq.quantize(model, loader), loader).passed
        True
    """
    check_arguments(check, at_least=1, num_batches=num_batches)
    check_arguments(check, least=least, concrete_args=concrete_args)
    if not math.isfinite(least):
        raise ConfigError(f"check(least={least!r}): expected a number of dB, such as 20.0.")
    plain = as_plain(float_model, "check", training=False)
    if any(True for _ in regions(plain)):
        raise StageError("check needs the float model first, then the quantized one.")
    check_data(data)
    batches = list(itertools.islice(data, num_batches))
    if not batches:
        raise CalibrationError("check got no batches.")
    outputs = compare_outputs(plain, as_converted(quantized), batches)
    found = Check(outputs=outputs.rows(), least=least, batches=len(batches))
    if found.passed:
        return found
    advice = tuple(_advise(plain, quantized, batches, found, dict(concrete_args or {})))
    return Check(outputs=found.outputs, least=least, batches=len(batches), advice=advice)


def as_converted(quantized: nn.Module) -> nn.Module:
    """Return a model in any stage after calibration, in a form that rounds."""
    refuse_waiting(quantized, "check")
    stages = {stage_of(region) for _, region in regions(quantized)}
    if Stage.PREPARED in stages:
        return convert_to_reference_fx(quantized)
    if Stage.CONVERTED in stages or tree_of(quantized).method:
        return quantized
    stage = f"is {stages.pop()}" if stages else f"is a plain {type(quantized).__name__}"
    raise StageError(f"check needs a quantized model; this one {stage}. Use quantize(...) or convert_fx(...).")


def compare_outputs(
    float_model: nn.Module, quantized: nn.Module, batches: Iterable[object], known: Known | None = None
) -> Outputs:
    """Run both on the same batches. Neither is changed, nor are the batches.

    What is `known` of the float model's answers to these very batches is not computed again, and grows by the others.
    """
    found, tree, draws = Outputs(), tree_of(quantized), Draws(float_model)
    with (
        torch.no_grad(),
        evaluating(float_model),
        evaluating(quantized),
        left_as_it_was(float_model, quantized),
    ):
        for index, batch in enumerate(batches):
            wanted = None if known is None else known.get(index)
            if wanted is None:
                with parameters_kept(float_model), draws.at(index):
                    wanted = tree.call(float_model, copy_inputs(batch))
            if known is not None:
                known.keep(index, wanted)
            with draws.at(index):
                made = run_quantized(quantized, copy_inputs(batch))
            found.add(wanted, made)
    return found


def _advise(
    float_model: nn.Module, quantized: nn.Module, batches: list[object], found: Check, concrete: dict[str, object]
) -> Iterable[str]:
    if not found.compared:
        yield (
            "No output can be compared: their shapes follow from values, as after non-maximum suppression. Check the "
            "part of the model before that, or use fq.tune with your own metric."
        )
        return
    try:
        layers = compare(float_model, quantized, batches, concrete_args=concrete)
    except FxQuantError as error:
        yield f"fq.compare could not say where the error enters: {error}"
        return
    yield from _name_causes(layers)
    if any(row.status == "int8" for row in explain(quantized)):
        yield (
            'fq.quantize(model, data), whose precision is "auto", lifts what causes it; fq.tune does so by your own '
            "metric; docs/accuracy.md has the other ways."
        )


def _name_causes(layers: Comparison) -> Iterable[str]:
    worst = [row for row in layers.worst(3) if row.enters > 0.05]
    if worst:
        names = ", ".join(f"{row.path or row.node} ({row.enters:.0%})" for row in worst)
        yield f"Most of the error enters at {names}: leave these in float with ignore=[...], or give them another rule."
    eaten = [row for row in layers if (row.collapsed or 0) > _EATEN]
    if eaten:
        names = ", ".join(f"{row.path or row.node} ({row.collapsed:.0%})" for row in eaten[:3])
        yield f"Ranges that eat their signal, with the share of values that become zero: {names}."
    if narrow := layers.narrow():
        names = ", ".join(row.beyond for row in narrow[:3])
        yield f"Beyond what calibration saw: {names}. Calibrate with data like these."
