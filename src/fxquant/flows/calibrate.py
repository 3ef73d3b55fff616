"""Run data through a prepared model, so that its observers see the ranges."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.config.check_fields import check_arguments
from fxquant.errors import CalibrationError, StageError
from fxquant.flows.mixed_batches import warn_of_lengths
from fxquant.flows.name_batch import naming_batch, shapes_of
from fxquant.graph.check_model import refuse_other
from fxquant.graph.first_call import Waiting, begin
from fxquant.graph.region import Region, regions, stage_of
from fxquant.graph.region_parts import Stage
from fxquant.graph.tree import OF_A_LOSS, is_several, is_value, tree_of
from fxquant.numerics.distributed.merge import merging_over_ranks
from fxquant.numerics.fake_quant import FakeQuant
from fxquant.numerics.observers.table import Observer
from fxquant.numerics.observers.watcher import Watcher
from fxquant.progress import following

T = TypeVar("T")
log = logging.getLogger("fxquant")


def calibrate(
    prepared: nn.Module, data: Iterable[object], *, num_batches: int | None = None, progress: bool = False
) -> nn.Module:
    """Feed batches, all of `data` or `num_batches` of it, to a prepared model and return it.

    A batch is a tensor, a dict of keyword arguments (or the one argument itself, if none of its keys is an argument's
    name), or a tuple or list of positional arguments; what goes beyond the
    example inputs given to `prepare_fx` (labels, mostly) is left out. With torch.distributed, every rank gives its own
    share of the data, and all end with the ranges of the whole. A model from `prepare_qat_fx` trains from these ranges.
    `progress` shows a bar, in a terminal.

    Example:
        >>> prepared = fq.prepare_fx(model, fq.get_default_qconfig_mapping(), (loader[0],))
        >>> quantized = fq.convert_fx(fq.calibrate(prepared, loader))
    """
    refuse_other(prepared, "calibrate")
    check_arguments(calibrate, at_least=1, num_batches=num_batches)
    if isinstance(prepared, Waiting):
        batch, data = peek(data)
        args, kwargs = as_example(batch, prepared)
        begin(prepared, args, kwargs or {})
    stages = {stage_of(region) for _, region in regions(prepared)}
    nothing = bool(tree_of(prepared).method) and not stages  # to quantize
    if Stage.PREPARED not in stages and not nothing:
        what = f"a {stages.pop()} model" if stages else "a plain module"
        raise StageError(f"calibrate needs a model from prepare_fx or prepare_qat_fx, and got {what}.")
    if prepared.training:
        raise StageError("calibrate runs in eval mode: call prepared.eval() first.")
    check_data(data)
    _refuse_frozen(prepared)
    count, lengths = 0, set[int]()
    watchers = [module for module in prepared.modules() if isinstance(module, Watcher)]
    with (
        torch.no_grad(),
        left_as_it_was(prepared),  # what it remembers of calls would be in the answers of the converted model
        _observing(prepared) as observers,
        merging_over_ranks([*observers, *watchers]),
    ):
        for batch in following(data, "calibrating", wanted=progress, most=num_batches):
            count += 1
            lengths.add(len(batch) if is_several(batch) else 1)
            with naming_batch(count, batch, prepared):
                made = run_batch(prepared, batch)
                if isinstance(made, Iterator):  # a forward with `yield` runs as it is asked
                    deque(made, maxlen=0)
    warn_of_lengths(lengths, tree_of(unwrapped(prepared)).num_inputs)
    if stages and observers and not any(observer.seen for observer in observers):
        _tell_of_no_data(count, batch if count else None)
    return prepared


def _refuse_frozen(prepared: nn.Module) -> None:
    """Raise if no data would change anything: all scales are fixed."""
    watched = any(isinstance(module, Watcher) for module in prepared.modules())
    states = {module.state for module in prepared.modules() if isinstance(module, FakeQuant) and module.observer}
    if states == {"frozen"} and not watched:
        raise StageError("calibrate got a frozen model, whose scales are fixed. Calibrate before fxquant.freeze.")


def _tell_of_no_data(count: int, batch: object) -> None:
    """Raise if there was nothing to see: no batches, or batches without samples."""
    if not count:
        raise CalibrationError("the calibration data has no batches. Give at least one; about 100 images is usual.")
    if is_empty(batch):
        raise CalibrationError(
            f"the calibration data is empty: batch {count}, {shapes_of(batch)}, has no samples, and no quantizer saw "
            "numbers. Give at least one sample; about 100 images is usual."
        )


def is_empty(batch: object) -> bool:
    """Tell whether a batch has tensors, and none of them an element."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    return bool(tensors) and not any(tensor.numel() for tensor in tensors)


@contextlib.contextmanager
def _observing(prepared: nn.Module) -> Iterator[list[Observer]]:
    """While it lasts, quantizers that train observe as well; gives the observers, in the order of the model."""
    quantizers = [module for module in prepared.modules() if isinstance(module, FakeQuant)]
    training = [quantizer for quantizer in quantizers if quantizer.state == "train"]
    seeing = [module for module in prepared.modules() if isinstance(module, (FakeQuant, Watcher))]
    looking_away = [module for module in seeing if not module.observing]
    for module in looking_away:
        module.observing = True
    for quantizer in training:
        quantizer.state, quantizer.ready = "observe", False
    try:
        yield [q.observer for q in quantizers if q.observer is not None and q.state == "observe"]
    finally:
        for quantizer in training:
            quantizer.state = "train"
        for module in looking_away:
            module.observing = False


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, FullyShardedDataParallel or an averaged copy."""
    while not isinstance(model, Region) and isinstance(inner := getattr(model, "module", None), nn.Module):
        if type(model).__module__.partition(".")[0] != "torch":
            break
        model = inner
    return model


def run_batch(prepared: nn.Module, batch: object) -> Any:
    """Call the model with a batch in any of the forms that `calibrate` takes."""
    return tree_of(unwrapped(prepared)).call(prepared, batch)


def check_data(data: object) -> None:
    """Raise unless data is an iterable of batches, and not a batch itself."""
    if isinstance(data, (Tensor, np.ndarray, Mapping, str)) or not isinstance(data, Iterable):
        raise CalibrationError(
            f"calibration data is a {type(data).__name__}; give an iterable of batches: a DataLoader or [batch]."
        )


def peek(data: Iterable[T]) -> tuple[T, Iterable[T]]:
    """Return the first batch, and data that still has it: a one-shot iterator is put together again."""
    check_data(data)
    iterator = iter(data)
    try:
        first = next(iterator)
    except StopIteration:
        raise CalibrationError("the calibration data has no batches.") from None
    if iterator is data:
        return first, itertools.chain([first], iterator)
    return first, data


def as_example(batch: object, model: nn.Module) -> tuple[tuple[object, ...], dict[str, object] | None]:
    """Example inputs from a batch: a tuple gives as many arguments as forward has without a default (labels go).

    A dict gives what forward takes, but for labels that it runs without; where none of its keys is an
    argument's name, it is one value for a forward that runs with it. A forward with `*args` gets as many as it runs
    with.
    """
    parameters = inspect.signature(model.forward).parameters
    if isinstance(batch, np.ndarray):
        raise CalibrationError("a batch is a numpy array. Give tensors: torch.from_numpy(batch).")
    if isinstance(batch, Mapping):
        any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        named = {key: value for key, value in batch.items() if any_name or key in parameters}
        if not any_name and is_value(batch, [*parameters]) and runs(model, (batch,), {}):
            return (batch,), None
        if not named:
            raise CalibrationError(
                f"a batch is a dict with {', '.join(map(repr, batch)) or 'nothing in it'}, and the model takes "
                f"{', '.join(map(repr, parameters)) or 'no arguments'}. Give dicts by these names, or tuples."
            )
        return (), _without_labels(model, named)
    if is_several(batch):
        by_place = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = max(1, sum(p.default is p.empty for p in by_place))
        if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            needed = _most_taken(model, batch, needed)
        _tell_of_left_out(model, batch, [p.name for p in by_place], needed)
        return tuple(batch[:needed]), None
    return (batch,), None


def refuse_lists_as_one(model: nn.Module, batch: object, error: Exception) -> None:
    """Raise, of a model that fails on the first value of a batch, that it takes the whole as one, if it does."""
    if is_several(batch) and runs(model, (batch,), {}):
        raise CalibrationError(
            f"forward takes a batch, a {type(batch).__name__} of {len(batch)}, as one value, and a list or tuple alone "
            "is read as the arguments of forward, then labels. Give tuples of one value: [(batch,), ...]."
        ) from error


def _without_labels(model: nn.Module, named: dict[str, object]) -> dict[str, object]:
    """Leave out what a loss alone is computed of, where the model runs without: a served model is called so."""
    parameters = inspect.signature(model.forward).parameters
    optional = {name for name, each in parameters.items() if name in OF_A_LOSS and each.default is None}
    left = {name: value for name, value in named.items() if name not in optional}
    if not left or len(left) == len(named):
        return named
    return left if runs(model, (), left) else named


def _most_taken(model: nn.Module, batch: Sequence[object], least: int) -> int:
    """Tell how many values of a batch a forward with `*args` runs with: all of them, or fewer where it fails."""
    for count in range(len(batch), least, -1):
        if runs(model, batch[:count], {}):
            return count
    return least


def _tell_of_left_out(model: nn.Module, batch: Sequence[object], names: Sequence[str], taken: int) -> None:
    """Warn of values that are left out as labels would be, and that the model runs with: they may be inputs."""
    more, values = names[taken : len(batch)], batch[taken : len(names)]
    if not more or not OF_A_LOSS.isdisjoint(more) or not (full := _outputs(model, batch[: len(names)], {})):
        return
    classes = any(isinstance(value, Tensor) and value.dim() < 2 and not value.is_floating_point() for value in values)
    if classes and not _is_input(full[0], _outputs(model, batch[:taken], {})):
        return
    warnings.warn(
        f"batches have {len(batch)} values, and forward runs without {', '.join(map(repr, more))}, so what they "
        "give there was left out, as labels are. If it is an input, give example_inputs: a tuple of all inputs.",
        stacklevel=4,
    )


def _is_input(full: object, without: tuple[object] | None) -> bool:
    """Tell whether a value that may be the class of a sample is an input: outputs are others, of the same form.

    A loss is one output more, or takes the place of the outputs.
    """
    if without is None:
        return True
    (ours, form), (theirs, other) = tree_flatten(full), tree_flatten(without[0])
    shapes = [[getattr(leaf, "shape", None) for leaf in leaves] for leaves in (ours, theirs)]
    if form != other or shapes[0] != shapes[1]:
        return False
    return any(isinstance(a, Tensor) and not torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def runs(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Tell whether a call returns. The model and the random numbers stay as they are."""
    return _outputs(model, args, kwargs) is not None


def _outputs(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object] | None:
    """Return (what a call returns,), or None if it raises. The model and the random numbers stay as they are."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), left_as_it_was(model):
            return (model(*args, **kwargs),)
    except Exception as error:
        log.debug("forward does not take %d values and %s of a batch: %s", len(args), list(kwargs), error)
        return None
