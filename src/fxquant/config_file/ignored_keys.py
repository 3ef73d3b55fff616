"""Notes about what a file may say and what has no meaning here: (where, when, why), one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxquant.config_file.sections.conf import Conf
from fxquant.config_file.sections.quantization import Wishes

Row = tuple[str, Callable[[Conf], Any], str]

_OTHER_TOOLS = (
    *("graph_optimization", "mixed_precision", "model_conversion", "pruning", "distillation", "auto_distillation"),
    *("nas", "train"),
)

STRATEGIES_READ_AS = {
    "automixedprecision": "basic", "tpe": "bayesian", "sigopt": "bayesian", "auto": "basic", "conservative": "basic",
    "mse_v2": "mse", "hawq_v2": "mse",
}  # fmt: skip

_ROWS: tuple[Row, ...] = (
    (
        "model.framework",
        lambda c: c.model.framework not in ("pytorch_fx", "NA"),
        "models of PyTorch are quantized by graph, as with pytorch_fx",
    ),
    ("model.inputs", lambda c: c.model.inputs, "inputs are those of forward"),
    ("model.outputs", lambda c: c.model.outputs, "outputs are those of forward"),
    ("device", lambda c: c.device == "gpu", "int8 models run on the CPU"),
    *(
        (name, lambda c, name=name: getattr(c, name) is not None, "it is no part of quantization")
        for name in _OTHER_TOOLS
    ),
    (
        "quantization.recipes.scale_propagation_max_pooling",
        lambda c: not c.quantization.recipes.scale_propagation_max_pooling,
        "pooling always has the scale of its input",
    ),
    (
        "quantization.recipes.scale_propagation_concat",
        lambda c: not c.quantization.recipes.scale_propagation_concat,
        "the target says which scales a concat shares",
    ),
    (
        "quantization.recipes.fast_bias_correction",
        lambda c: c.quantization.recipes.fast_bias_correction,
        "biases are always corrected",
    ),
    (
        "quantization.recipes.weight_correction",
        lambda c: c.quantization.recipes.weight_correction,
        "biases take up what rounding the weights does to the mean",
    ),
    (
        "quantization.advance.bias_correction",
        lambda c: c.quantization.advance.bias_correction,
        "biases are always corrected",
    ),
    (
        "quantization: bf16",
        lambda c: any("bf16" in (*(w.weight.dtype or ()), *(w.activation.dtype or ())) for w in all_wishes(c)),
        "what is not quantized runs in float32",
    ),
    (
        "quantization: activation per_channel",
        lambda c: any("per_channel" in (w.activation.granularity or ()) for w in all_wishes(c)),
        "rules give activations one scale for each tensor",
    ),
    (
        "quantization.train.execution_mode",
        lambda c: c.quantization.train and c.quantization.train.execution_mode == "graph",
        "training runs as it is written",
    ),
    ("quantization.train.hostfile", lambda c: c.quantization.train and c.quantization.train.hostfile, "use torchrun"),
    (
        "quantization.train.postprocess",
        lambda c: c.quantization.train and c.quantization.train.postprocess,
        "the loss takes the output as it is",
    ),
    ("evaluation.performance", lambda c: c.evaluation.performance, "fxquant.benchmark measures speed"),
    (
        "evaluation.accuracy.configs",
        lambda c: c.evaluation.accuracy and c.evaluation.accuracy.configs,
        "torch.set_num_threads says how many threads there are",
    ),
    (
        "tuning.strategy.sigopt_*",
        lambda c: any(name.startswith("sigopt_") for name in c.tuning.strategy.model_fields_set),
        "nothing is sent to a service",
    ),
    (
        "tuning.strategy.accuracy_weight, latency_weight",
        lambda c: c.tuning.strategy.model_fields_set & {"accuracy_weight", "latency_weight"},
        "among the models within the tolerance, the objective counts alone",
    ),
    (
        "tuning.multi_objectives",
        lambda c: c.tuning.multi_objectives,
        "the first objective counts, among the models within the tolerance",
    ),
    ("tuning.tensorboard", lambda c: c.tuning.tensorboard, "trials are lines of trials.jsonl in the workspace"),
    (
        "tuning.diagnosis",
        lambda c: c.tuning.diagnosis and c.tuning.diagnosis.diagnosis_after_tuning,
        "fxquant.sensitivity and fxquant.explain tell what costs accuracy",
    ),
)

_READ_AS: tuple[tuple[str, Callable[[Conf], tuple[object, object] | None]], ...] = (  # (where, (value, as what))
    (
        "quantization.calibration.sampling_size",
        lambda c: (list(sizes), max(sizes)) if len(sizes := c.quantization.calibration.sampling_size) > 1 else None,
    ),
    (
        "quantization: scheme",
        lambda c: (
            ("asym_float", "asym") if any("asym_float" in (w.weight.scheme or ()) for w in all_wishes(c)) else None
        ),
    ),
    (
        "tuning.strategy.name",
        lambda c: (name, STRATEGIES_READ_AS[name]) if (name := c.tuning.strategy.name) in STRATEGIES_READ_AS else None,
    ),
    ("tuning.objective", lambda c: ("footprint", "modelsize") if c.tuning.objective == "footprint" else None),
)


def all_wishes(conf: Conf) -> list[Wishes]:
    """Return what is asked for of the model, of op types and of ops."""
    asked = conf.quantization
    return [asked.model_wise, *asked.optype_wise.values(), *asked.op_wise.values()]


def notes_of(conf: Conf) -> tuple[str, ...]:
    """Return a line for each thing that a file says and that has no meaning here, or another."""
    nothing = (f"{where} has no effect here: {why}." for where, found, why in _ROWS if found(conf))
    others = ((where, found(conf)) for where, found in _READ_AS)
    return (*nothing, *(f"{where}: {pair[0]!r} is read as {pair[1]!r}." for where, pair in others if pair is not None))
