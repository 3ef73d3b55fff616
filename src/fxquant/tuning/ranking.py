"""The ops of a model by what they cost in accuracy, the worst first: at the model's outputs, or at their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.flows.calibrate import run_batch
from fxquant.tuning.plan import Plan
from fxquant.tuning.sensitivity import Sensitivity, measure, readers, switchable, switches_of
from fxquant.tuning.space import Key
from fxquant.tuning.trial import Work


def by_sensitivity(work: Work, batches: list[object], plan: Plan) -> list[Key]:
    """By the noise that an op's weight and inputs add to the outputs, each alone quantized."""
    found = measure(work.prepared, batches, rules=work.rules_of(plan), alone_float=False, **work.hardware)
    noise = _noise_by_op(found)
    return _ordered(work, noise)


def _noise_by_op(found: Sensitivity) -> dict[str, float]:
    noise: dict[str, float] = {}
    for row in found:
        for path in row.ops:
            noise[path] = noise.get(path, 0.0) + 10 ** (-row.alone_quantized / 10)
    return noise


def by_mse(work: Work, batches: list[object], plan: Plan) -> list[Key]:
    """By how far an op's own output is from the float model's, of its power, with its weight and inputs quantized."""
    model, account = switchable(work.prepared, rules=work.rules_of(plan), **work.hardware)
    switches = switches_of(model)
    for switch in switches.values():
        switch.disable_fake_quant()
    error: dict[str, float] = {}
    for unit in work.space.units:
        own = [switch for site, switch in switches.items() if unit.path in readers(account, site, switch)]
        wanted = _outputs(model, unit.path, batches)
        for switch in own:
            switch.enable_fake_quant()
        found = _outputs(model, unit.path, batches)
        for switch in own:
            switch.disable_fake_quant()
        power = sum(float((one**2).sum()) for one in wanted)
        noise = sum(float(((one - other) ** 2).sum()) for one, other in zip(wanted, found, strict=True))
        error[unit.path] = noise / power if power else 0.0
    return _ordered(work, error)


@torch.no_grad()
def _outputs(model: nn.Module, path: str, batches: list[object]) -> list[Tensor]:
    """Return what the module at a path returns; nothing, where a function stands there."""
    found: list[Tensor] = []
    module = dict(model.named_modules()).get(path)
    if module is None or not path:
        return found

    def keep(module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            found.append(output.double())

    handle = module.register_forward_hook(keep)
    try:
        for batch in batches:
            run_batch(model, batch)
    finally:
        handle.remove()
    return found


def _ordered(work: Work, cost: dict[str, float]) -> list[Key]:
    """Units by falling cost; those that cost the same in the order of the graph."""
    units = sorted(work.space.units, key=lambda unit: -cost.get(unit.path, 0.0))
    return [unit.key for unit in units]
