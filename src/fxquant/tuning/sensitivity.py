"""What each quantized tensor costs: the model with that tensor alone quantized, and with it alone in float.

It is measured on the model with all scales fixed, where rounding can be switched off tensor by tensor; nothing is
decided or converted again. Without a metric, outputs are compared with the float model's: the signal-to-noise ratio

    SQNR = 10 log10(sum y^2 / sum (y - y')^2)   in dB, over all floating outputs of all batches
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fxquant.arguments import check_calibrated
from fxquant.capture.run_untraced import Draws, evaluating
from fxquant.capture.untouched.snapshot import Snapshot
from fxquant.config.check_fields import check_arguments
from fxquant.config.rules import Rules
from fxquant.config.target import Target
from fxquant.errors import ConfigError
from fxquant.flows.calibrate import as_example, calibrate, check_data, peek, run_batch
from fxquant.flows.decide import decide, is_open
from fxquant.graph.check_model import refuse_other
from fxquant.graph.region import regions
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.switches import Switched
from fxquant.quantize_fx import freeze, prepare_fx
from fxquant.tables.explain import explain
from fxquant.tables.explanation import Explanation, place_of
from fxquant.tables.explanation import Row as Op
from fxquant.tables.present import Shown, as_csv, new_table
from fxquant.targets import by_name
from fxquant.tuning.judge import read_score
from fxquant.tuning.trial import AnyEngine

if TYPE_CHECKING:
    from rich.table import Table

WHOLE = 200.0  # dB, of outputs that are equal


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One tensor. `what` is weight or activation, Values are dB, or the metric's.

    `ops` are the paths that read it, `places` the single ops there, as `explain` calls them (`layer1.0:add`).
    """

    site: str
    what: str
    ops: tuple[str, ...]
    places: tuple[str, ...]
    spec: str
    alone_quantized: float
    alone_float: float


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Sensitivity(Shown):
    """The rows, worst first; printing it shows a table. `quantized` is the value with all tensors quantized."""

    spare: ClassVar[tuple[str, ...]] = ("read by", "spec")  # give way in a narrow terminal, the last first
    rows: tuple[Row, ...]
    unit: str
    quantized: float
    float_: float

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_json(self) -> str:
        """Return one object with `unit`, `quantized`, `float` and `rows`."""
        rows = [asdict(row) for row in self.rows]
        return json.dumps(
            {"unit": self.unit, "quantized": self.quantized, "float": self.float_, "rows": rows}, indent=1
        )

    def to_csv(self) -> str:
        """Return a line for each row, after one with the names of the columns."""
        names = list(Row.__dataclass_fields__)
        return as_csv(names, ([getattr(row, name) for name in names] for row in self.rows))

    def table(self) -> Table:
        """Return the rows as a rich table."""
        title = f"all quantized: {self.quantized:.4g} {self.unit}; worst first"
        numbers = ("alone quantized", "alone float")
        columns = ("tensor", "what", "read by", "spec", *numbers)
        table = new_table(title, columns, whole=("tensor",), right=numbers)
        for row in self.rows:
            values = (f"{row.alone_quantized:.4g}", f"{row.alone_float:.4g}")
            table.add_row(row.site, row.what, ", ".join(row.places), row.spec, *values)
        return table

    def parts(self) -> tuple[Table]:
        """Return the table."""
        return (self.table(),)


def sensitivity(
    model: nn.Module,
    data: Iterable[object],
    *,
    evaluate: Callable[[nn.Module], object] | None = None,
    higher_is_better: bool = True,
    num_batches: int = 4,
    qconfig_mapping: object = None,
    target: Target | str | None = None,
    engine: AnyEngine = "onednn",
) -> Sensitivity:
    """Tell how much each weight and each activation costs, alone quantized and alone in float; the worst first.

    `model` is a calibrated one from `prepare_fx`, or a float one, which is prepared and calibrated with `data` first.
    Without `evaluate`, the first `num_batches` batches of `data` are run and outputs compared with the float model's,
    in dB. With it, `evaluate(model)` is asked: a number, or results by sample; a loss with `higher_is_better=False`.
    `qconfig_mapping` and `target` are as for `prepare_fx`, and `engine` runs the models.

    Example:
        >>> found = fq.sensitivity(model, loader)
        >>> sorted({row.what for row in found})
        ['activation', 'weight']
    """
    refuse_other(model, "sensitivity")
    check_arguments(sensitivity, at_least=1, num_batches=num_batches)
    check_data(data)
    batches = list(itertools.islice(data, num_batches))
    if not batches:
        raise ConfigError("sensitivity got no data. Give an iterable of batches.")
    prepared = model
    if not any(is_open(region) for _, region in regions(model)):
        prepared = _prepare(
            model, peek(data)[1] if not isinstance(data, Iterator) else batches, qconfig_mapping, target
        )
    check_calibrated(prepared, "sensitivity")
    hardware = by_name(target) if target is not None else None
    return measure(
        prepared, batches, evaluate=evaluate, higher_is_better=higher_is_better, target=hardware, engine=engine
    )


def _prepare(model: nn.Module, data: Iterable[object], mapping: object, target: Target | str | None) -> nn.Module:
    batch, data = peek(data)
    example_inputs, example_kwargs = as_example(batch, model)
    with evaluating(model):
        rules = by_name(target).qconfig if mapping is None else mapping
        prepared = prepare_fx(model, rules, example_inputs, example_kwargs=example_kwargs, target=target)
    return calibrate(prepared, data)


def measure(
    prepared: nn.Module,
    batches: list[object],
    *,
    evaluate: Callable[[nn.Module], object] | None = None,
    higher_is_better: bool = True,
    target: Target | None = None,
    engine: AnyEngine = "onednn",
    rules: Rules | None = None,
    alone_float: bool = True,
) -> Sensitivity:
    """`sensitivity` of a calibrated model, for any rules."""
    model, account = switchable(prepared, target=target, engine=engine, rules=rules)
    switches = switches_of(model)
    ask = _Ask(model, batches, evaluate, switches)
    rows = [
        Row(
            site=site,
            what="activation" if isinstance(switch, FakeQuant) else "weight",
            ops=readers(account, site, switch),
            places=readers(account, site, switch, place_of),
            spec=str(switch.spec),
            alone_quantized=ask(functools.partial(operator.is_, switch)),
            alone_float=ask(functools.partial(operator.is_not, switch)) if alone_float else math.nan,
        )
        for site, switch in switches.items()
    ]
    sign = 1 if evaluate is None or higher_is_better else -1
    rows.sort(key=lambda row: sign * row.alone_quantized)
    return Sensitivity(
        rows=tuple(rows),
        unit="dB" if evaluate is None else "by evaluate",
        quantized=ask(lambda each: True),
        float_=WHOLE if evaluate is None else ask(lambda each: False),
    )


def switchable(
    prepared: nn.Module, *, target: Target | None, engine: AnyEngine, rules: Rules | None
) -> tuple[nn.Module, Explanation]:
    """Return the model with all scales fixed, whose rounding can be switched, and what was decided about it.

    Its biases are the float model's: those that make up for rounded weights would be wrong beside weights that are not.
    """
    decided = decide(prepared, target=target, engine=engine, rules=rules)
    before, frozen = decided.state_dict(), freeze(decided)
    with torch.no_grad():
        for path, tensor in frozen.state_dict().items():
            if path.rpartition(".")[2] == "bias" and isinstance(tensor, Tensor):
                tensor.copy_(before[path]) if path in before else tensor.zero_()
    return frozen, explain(decided)


def switches_of(decided: nn.Module) -> dict[str, Switched]:
    """Return what rounds something, by the path of the weight's op or the name of the tensor."""
    found: dict[str, Switched] = {}
    for path, module in decided.named_modules():
        if isinstance(module, Switched) and getattr(module, "state", "frozen") == "frozen":
            found[path if isinstance(module, FakeQuant) else path.removesuffix(".weight_fq")] = module
    return found


def readers(
    account: Explanation,
    site: str,
    switch: Switched,
    name_of: Callable[[Op], str] = operator.attrgetter("path"),
) -> tuple[str, ...]:
    """Return the paths, or other names, of the ops that read what a switch rounds."""
    if not isinstance(switch, FakeQuant):
        return (site,)
    region, _, name = site.rpartition(".")
    region = region.rpartition(".")[0]
    return tuple(dict.fromkeys(name_of(row) for row in account if row.region == region and name in row.inputs))


class _Ask:
    """Values of the model with some of its switches on. What its calls remember is taken back after each."""

    def __init__(
        self,
        model: nn.Module,
        batches: list[object],
        evaluate: Callable[[nn.Module], object] | None,
        switches: Mapping[str, Switched],
    ) -> None:
        self._model, self._batches, self._evaluate, self._switches = model, batches, evaluate, switches
        self._before = Snapshot(model)
        self._set(lambda each: False)
        self._draws = Draws(model)
        self._wanted = [] if evaluate is not None else [self._outputs(at, batch) for at, batch in enumerate(batches)]
        self._before.restore()

    def _set(self, rounds: Callable[[Switched], bool]) -> None:
        for switch in self._switches.values():
            switch.enable_fake_quant(rounds(switch))

    @torch.no_grad()
    def _outputs(self, index: int, batch: object) -> list[Tensor]:
        with self._draws.at(index):
            leaves = tree_leaves(run_batch(self._model, batch))
        return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def __call__(self, rounds: Callable[[Switched], bool]) -> float:
        self._set(rounds)
        try:
            return self._value()
        finally:
            self._before.restore()

    def _value(self) -> float:
        if self._evaluate is not None:
            with torch.no_grad():
                return read_score(self._evaluate(self._model)).value
        signal = noise = 0.0
        for at, (batch, wanted) in enumerate(zip(self._batches, self._wanted, strict=True)):
            for one, other in zip(self._outputs(at, batch), wanted, strict=True):
                whole = torch.isfinite(one) & torch.isfinite(other)
                signal += float((other[whole] ** 2).sum())
                noise += float(((one - other)[whole] ** 2).sum())
        return min(10 * math.log10(signal / noise), WHOLE) if noise and signal else WHOLE if not noise else -WHOLE
