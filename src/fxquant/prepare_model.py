"""From a float model to a prepared one: capture, PREPARE, then what targets need watched, or the quantizers to train.

Without example inputs all of that happens at the model's first call.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx, nn

from fxquant.arguments import check_boundaries, check_concrete, check_rules, read_examples
from fxquant.capture import Method, Sizes, capture
from fxquant.capture.untouched.snapshot import left_as_it_was
from fxquant.capture_with_config import capture_with_config, open_regions
from fxquant.engines.table import targets_of_engines
from fxquant.flows.decide import decide_for_training, watch_for
from fxquant.flows.pipelines import PREPARE, PREPARE_QAT
from fxquant.graph.check_model import warn_of_dtype
from fxquant.graph.clone_tree import clone_tree, let_go
from fxquant.graph.context import Context
from fxquant.graph.first_call import waiting
from fxquant.graph.hooks import warn_of_traced_hooks
from fxquant.graph.late_code import make_code
from fxquant.graph.region import Region, origin_of, set_origin
from fxquant.graph.run_passes import run_passes
from fxquant.passes.candidates import MADE_OF_PARAMETERS
from fxquant.tables.explain import explain
from fxquant.targets import by_name

log = logging.getLogger("fxquant")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """How a model is to be prepared: what passes are given, and how it is captured."""

    context: Context
    method: Method
    sizes: Sizes
    concrete: Mapping[str, object]  # plain arguments of forward that are fixed


def prepare_model(model: nn.Module, asked: Asked, inputs: object, kwargs: Mapping[str, object] | None) -> nn.Module:
    """Prepare a model with its example inputs; without any, when it is first called."""
    prepare = functools.partial(_prepare, asked=asked)
    if inputs is None and kwargs is None:
        return waiting(model, prepare, _look)
    return prepare(model, *read_examples(inputs, kwargs, model))


def capture_without_inputs(model: nn.Module) -> nn.Module:
    """Capture a model by a trace without inputs. Nothing is known of its tensors then."""
    with left_as_it_was(model):
        return capture(clone_tree(model, share_objects=False), None, method="symbolic")


def _look(model: nn.Module) -> fx.Graph:
    """Return the graph of a model that waits for its first call."""
    captured = capture_without_inputs(model)
    assert isinstance(captured, Region)
    return captured.graph


def _prepare(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], *, asked: Asked) -> nn.Module:
    context = asked.context
    check_concrete(model, asked.concrete, args, kwargs)
    with left_as_it_was(model):
        prepared, contexts = capture_with_config(
            model, args, kwargs, context, method=asked.method, sizes=asked.sizes, concrete=asked.concrete
        )
    warn_of_traced_hooks(model, prepared)
    check_boundaries(prepared, contexts)
    found = open_regions(prepared, contexts)
    passes = PREPARE_QAT if context.training else PREPARE
    run_passes(prepared, passes, lambda region: found[id(region)], only=lambda region: id(region) in found, runs=False)
    if context.training:
        decided = decide_for_training(prepared, context.target or by_name(None))
    else:
        decided = watch_for(prepared, [context.target] if context.target is not None else targets_of_engines())
    for own in {id(own.rules): own for own in reversed(contexts)}.values():
        check_rules(own)
    if isinstance(prepared, Region):
        set_origin(prepared, replace(origin_of(prepared), num_inputs=len(args)))
    warn_of_dtype(model, stacklevel=4)
    _tell(model, decided, context.training)
    if decided is not prepared:
        let_go(decided)
    make_code(prepared)
    return prepared


def _tell(model: nn.Module, decided: nn.Module, training: bool) -> None:
    account = explain(decided)
    log.info("prepared %s: %s", type(model).__name__, account.summary())
    if not any(row.status != "float" for row in account):
        why = "fxquant.explain(prepared) says why" if account.rows or account.left else "it has no ops to quantize"
        warnings.warn(f"nothing in {type(model).__name__} will be quantized: {why}.", stacklevel=5)
    elif training and (made := [row for row in account if row.reason == MADE_OF_PARAMETERS]):
        warnings.warn(
            f"{made[0].path or made[0].node}{f' and {len(made) - 1} more' * (len(made) > 1)} will stay in float: the "
            f"weight is computed from parameters in each call ({made[0].where}). To train it rounded, compute it in a "
            "parametrization (torch.nn.utils.parametrize) of a module of torch, and register that on the model that "
            "prepare_qat_fx returns.",
            stacklevel=5,
        )
