"""Let a region load the state dicts of its earlier selves: the float model's, and the calibrated model's.

flat          the tensors of a module that became a region around itself keep their names: `conv.weight`, and not
              `conv.op.weight`
float         parameters that capture moved into a stock module go by their old name there: `w1` for `w1.weight`, or
              have the other orientation (`addmm` takes its weight as [in, out]); those of an LSTM by the names of its
              form (fxquant.modules). Batch norms that were folded into ops are folded in the state, too
calibrated    what was seen of the tensors goes to the quantizers that are trained on them; else what the modules of the
              region say themselves: one with a method `read_calibrated` rewrites its part
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fxquant.graph.notes import STATISTICS
from fxquant.graph.paths import free_path
from fxquant.graph.preparation import Preparation
from fxquant.graph.region_parts import Origin


def adapt_state(
    region: nn.Module,
    origin: Origin,
    preparation: Preparation,
    state_dict: dict[str, object],
    prefix: str,
    errors: list[str],
) -> None:
    """Rewrite `state_dict` in place for a region that is not converted. The region's own state is left alone.

    What is against it goes to `errors`.
    """
    if preparation.statistics_path:
        known = region.get_submodule(preparation.statistics_path)._modules
        quantizers = f"{prefix}{preparation.statistics_path}." if known else None
    else:
        quantizers = f"{prefix}{preparation.quantizer_path}." if preparation.quantizers else None
    if preparation.observed is not None:
        read: Any = region.get_submodule(preparation.quantizer_path)
        kept, own = (f"{prefix}{path}." for path in (free_path(region, STATISTICS), preparation.quantizer_path))
        read.read_statistics(state_dict, kept, own, preparation.observed)
    if quantizers is None or not any(key.startswith(quantizers) for key in state_dict):
        # a prepared graph without quantizers (weights only) cannot tell whose state it is: only names are sure
        prepared = bool(preparation.quantizer_path or preparation.statistics_path)
        _rename(origin.moved, state_dict, prefix, turn=quantizers is not None or not prepared)
        errors += _fold(region, preparation, state_dict, prefix)
        return
    errors += _fold(region, preparation, state_dict, prefix)  # of a model that was trained, its norms are there
    readers = {path: module for path, module in region.named_modules() if hasattr(type(module), "read_calibrated")}
    if not readers:
        return
    paths = {id(module): f"{prefix}{path}." for path, module in region.named_modules()}
    for path, module in readers.items():
        module.read_calibrated(state_dict, f"{prefix}{path}.", paths)


def _rename(moved: Mapping[str, tuple[str, bool]], state_dict: dict[str, object], prefix: str, turn: bool) -> None:
    for old, (new, transposed) in moved.items():
        if prefix + old in state_dict and (turn if old == new else prefix + new not in state_dict):
            value = state_dict.pop(prefix + old)
            state_dict[prefix + new] = value.t() if transposed and isinstance(value, Tensor) else value


def _fold(region: nn.Module, preparation: Preparation, state_dict: dict[str, object], prefix: str) -> Iterator[str]:
    """Fold the norms of a float model's state into its ops; say why, where that cannot be."""
    for each in preparation.folded:
        given = each.given(state_dict, prefix)
        where = f"{prefix}{each.norm} was folded into {prefix}{each.named}"
        if given and preparation.adapted:
            yield f"{where}, and algorithms have changed that since. Load the float model's state before freeze."
        elif given and (lacks := each.lacks(state_dict, prefix)):
            yield f"{where}, and the state has no {prefix}{lacks[0]}. Give all of the float model's state."
        elif given:
            each.fold(region.get_submodule(each.op), state_dict, prefix)


def adapt_stock(cls: type, state_dict: dict[str, object], prefix: str) -> None:
    """Rewrite the tensors of a stock module by the names that the form which stands there has them by, if one does."""
    read = getattr(cls, "own_state", None)
    if read is None:
        return
    for key in [key for key in state_dict if key.startswith(prefix)]:
        own = read(key.removeprefix(prefix), state_dict[key])
        if own:
            del state_dict[key]
            state_dict.update({prefix + name: tensor for name, tensor in own.items()})


def refuse_integers(region: nn.Module, state_dict: Mapping[str, object], prefix: str, errors: list[str]) -> None:
    """Tell of the integers of a converted model that would be copied into a float parameter as its values."""
    for name, own in region.named_parameters():
        given = state_dict.get(prefix + name)
        if own.is_floating_point() and isinstance(given, Tensor) and not given.is_floating_point():
            errors.append(
                f"{prefix}{name}: the state has {given.dtype}, this model {own.dtype}. It is that of a converted "
                "model: load it into one that convert_fx made."
            )


def drop_flat(flat: str, state_dict: dict[str, object], prefix: str) -> None:
    """Give the tensors of the child `flat` the names that they had before the region stood around it."""
    longer = f"{prefix}{flat}."
    for key in [key for key in state_dict if key.startswith(longer)]:
        state_dict[prefix + key.removeprefix(longer)] = state_dict.pop(key)


def add_flat(flat: str, state_dict: dict[str, object], prefix: str, children: Container[str]) -> None:
    """Undo `drop_flat` for a state_dict that is loaded."""
    for key in [key for key in state_dict if key.startswith(prefix)]:
        rest = key.removeprefix(prefix)
        if rest.partition(".")[0] not in children:
            state_dict[f"{prefix}{flat}.{rest}"] = state_dict.pop(key)


def name_flat(flat: str, prefix: str, told: Iterable[list[str]]) -> None:
    """Let what is told of a load name tensors as state dicts do: keys that are missing or too many, and errors."""
    for texts in told:
        texts[:] = [text.replace(f"{prefix}{flat}.", prefix) for text in texts]
