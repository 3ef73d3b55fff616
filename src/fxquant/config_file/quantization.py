"""`Quantization("conf.yaml")`: a model and a file in, a quantized model out.

static, dynamic, weight_only    tune against the metric, if there is one; else one conversion
quant_aware_training            prepare, train by q_func or the file, convert
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fxquant.api import quantize
from fxquant.capture.run_untraced import evaluating
from fxquant.config.forms import closest
from fxquant.config.target import Target
from fxquant.config_file import common
from fxquant.config_file.data.loader import Loader
from fxquant.config_file.evaluation import Batches, Evaluation, metrics_of, postprocess_of
from fxquant.config_file.ignored_keys import STRATEGIES_READ_AS
from fxquant.config_file.quantized_model import QuantizedModel
from fxquant.config_file.read import read_conf
from fxquant.config_file.rules import recipes_of, rules_of
from fxquant.config_file.sections.conf import Conf
from fxquant.config_file.sections.data import Dataloader
from fxquant.config_file.training import train
from fxquant.errors import ConfigError
from fxquant.files import Json
from fxquant.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx
from fxquant.targets import by_name
from fxquant.tuning.executors import Executor
from fxquant.tuning.judge import Judge
from fxquant.tuning.trial import AnyEngine
from fxquant.tuning.tune import tune

log = logging.getLogger("fxquant")
OBJECTIVES = {"performance": "latency", "accuracy": "accuracy", "modelsize": "size", "footprint": "size"}


class Quantization:
    """A file, and what code adds to it; `fit` quantizes.

    `model` is an nn.Module or a `common.Model`. `calib_dataloader` gives batches of (inputs, labels) or of inputs.
    `eval_func(model)` gives a number, or results by sample; or `eval_dataloader` and a metric, of the file or
    `common.Metric`, do. `q_func(model)` trains, or calibrates. `progress` shows bars, in a
    terminal. What is not set here is taken from the file.
    """

    model: Any
    calib_dataloader: Iterable[Any] | None
    eval_dataloader: Iterable[Any] | None
    train_dataloader: Iterable[Any] | None
    eval_func: Callable[[nn.Module], Any] | None
    q_func: Callable[[nn.Module], Any] | None
    calib_func: Callable[[nn.Module], Any] | None
    metric: Any
    postprocess: Any
    engine: AnyEngine | None
    executor: Executor | str | None
    progress: bool | None

    def __init__(self, conf: str | Path | Mapping[str, object] | Conf) -> None:
        for name in Quantization.__annotations__:
            object.__setattr__(self, name, None)
        object.__setattr__(self, "conf", None)
        object.__setattr__(self, "notes", ())
        self.conf, self.notes = read_conf(conf)
        for note in self.notes:
            log.warning("%s", note)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(self, name):
            raise ConfigError(f"Quantization has no attribute {name!r}.{closest(name, Quantization.__annotations__)}")
        if name == "model" and not isinstance(value, common.Model):
            value = common.Model(value)
        object.__setattr__(self, name, value)

    def fit(self) -> QuantizedModel:
        """Quantize the model as the file says."""
        if self.model is None:
            raise ConfigError("there is no model. Set quantizer.model = your nn.Module, or a common.Model.")
        with evaluating(self.model.model):
            if self.conf.quantization.approach == "quant_aware_training":
                return self._train()
            return self._tune()

    __call__ = fit

    def _target(self) -> Target:
        return by_name(self.model.options.get("target"))

    def _tune(self) -> QuantizedModel:
        model, conf = self.model.model, self.conf
        rules = rules_of(conf, model, self._target())
        options = {name: value for name, value in self.model.options.items() if value is not None}
        data = self._calibration()
        evaluate, higher = self._evaluation()
        options |= self._example(data)
        policy = conf.tuning.exit_policy
        if evaluate is None or policy.performance_only:
            if not policy.performance_only:
                log.info("there is no eval_func and no metric: the model is quantized without looking at its accuracy.")
            return QuantizedModel(self._convert_once(rules, data, options), {"accuracy": None})
        if self.calib_func is not None or self.q_func is not None:
            raise ConfigError("tuning calibrates with data: set quantizer.calib_dataloader in the place of calib_func.")
        criterion = conf.tuning.accuracy_criterion
        wanted = conf.tuning.multi_objectives
        objective: Any = OBJECTIVES[wanted.objective[0] if wanted is not None else conf.tuning.objective]
        name: Any = STRATEGIES_READ_AS.get(conf.tuning.strategy.name, conf.tuning.strategy.name)
        executor: Any = self.executor
        found = tune(
            model,
            data,
            evaluate,
            tolerance=criterion.tolerance,
            criterion="absolute" if criterion.absolute is not None else "relative",
            objective=objective,
            strategy=name,
            max_trials=policy.max_trials,
            timeout=policy.timeout,
            workspace=conf.tuning.workspace.resume or conf.tuning.workspace.path,
            executor=executor,
            higher_is_better=higher,
            seed=conf.tuning.random_seed,
            recipes=recipes_of(conf, rules, objective),
            qconfig_mapping=rules,
            engine=self.engine,
            strict=False,
            progress=bool(self.progress),
            **options,
        )
        report = {
            "accuracy": {"float": found.base, "quantized": found.best.score, "passed": found.passed},
            "best": found.best.to_json(),
            "trials": [trial.to_json() for trial in found.trials],
            "stopped": found.stopped,
        }
        return QuantizedModel(found.model, report)

    def _convert_once(self, rules: object, data: Iterable[object] | None, options: dict[str, Any]) -> nn.Module:
        function = self.calib_func or self.q_func
        if function is None:
            options = {"strict": False, "progress": bool(self.progress), **options}
            return quantize(self.model.model, data, qconfig_mapping=rules, engine=self.engine, **options)
        converting = {name: options.pop(name) for name in list(options) if name.startswith("convert_")}
        prepared = prepare_fx(self.model.model, rules, strict=False, **options)
        with torch.no_grad():
            function(prepared)
        return convert_fx(prepared, engine=self.engine, **converting)

    def _train(self) -> QuantizedModel:
        model, section = self.model.model, self.conf.quantization.train
        data = self.train_dataloader
        if data is None and section is not None and section.dataloader is not None:
            data = self._loader(section.dataloader, "quantization.train.dataloader")
        if self.q_func is None and (section is None or data is None):
            raise ConfigError(
                "quant_aware_training needs training: set quantizer.q_func = your function of the model, or give the "
                "file a section quantization.train with optimizer, criterion and dataloader."
            )
        options = {name: value for name, value in self.model.options.items() if value is not None}
        converting = {name: options.pop(name) for name in list(options) if name.startswith("convert_")}
        source = data if data is not None else self.calib_dataloader
        if source is not None:
            options |= self._example(Batches(source, model, 1))
        torch.manual_seed(self.conf.tuning.random_seed)
        model.train()
        prepared = prepare_qat_fx(model, rules_of(self.conf, model, self._target()), strict=False, **options)
        model.eval()
        if self.q_func is not None:
            trained = self.q_func(prepared)
            prepared = trained if isinstance(trained, nn.Module) else prepared
        else:
            assert section is not None and data is not None
            train(section, prepared, model, data)
        made = convert_fx(prepared.eval(), engine=self.engine, **converting)
        return QuantizedModel(made, self._compare(made))

    def _compare(self, made: nn.Module) -> Json:
        """Accuracy beside the float model's; a warning where it is not within the tolerance."""
        evaluate, higher = self._evaluation()
        if evaluate is None:
            return {"accuracy": None}
        criterion = self.conf.tuning.accuracy_criterion
        judge = Judge(
            evaluate=evaluate,
            tolerance=criterion.tolerance,
            relative=criterion.absolute is None,
            higher_is_better=higher,
            early_stop=False,
        )
        base = judge.measure(self.model.model)
        verdict = judge.judge(made, base)
        if not verdict.passed:
            text = f"{verdict.score:.6g} of the float model's {base.value:.6g}"
            warnings.warn(f"the trained model is not within the tolerance: {text}. Train longer.", stacklevel=4)
        return {"accuracy": {"float": base.value, "quantized": verdict.score, "passed": verdict.passed}}

    def _calibration(self) -> Iterable[object] | None:
        """Batches of inputs for calibration, or of one batch where only the shapes count."""
        section, static = (
            self.conf.quantization.calibration,
            self.conf.quantization.approach.startswith("post_training"),
        )
        static = static and self.conf.quantization.approach != "post_training_dynamic_quant"
        data = self.calib_dataloader
        if data is None and section.dataloader is not None:
            data = self._loader(section.dataloader, "quantization.calibration.dataloader")
        if data is None and static and self.calib_func is None and self.q_func is None:
            raise ConfigError(
                "static quantization needs data: give --calibration, set quantizer.calib_dataloader, or give the file "
                "a quantization.calibration.dataloader."
            )
        if data is None and "example_inputs" not in self.model.options:
            data = self.eval_dataloader
        if data is None:
            return None
        if iter(data) is data:  # one pass is all that an iterator has
            data = list(data)
        return Batches(data, self.model.model, max(section.sampling_size) if static else 1)

    def _example(self, data: Iterable[object] | None) -> dict[str, object]:
        """Example inputs, unless `common.Model` has them."""
        if data is None or {"example_inputs", "example_kwargs"} & self.model.options.keys():
            return {}
        first = next(iter(data), None)
        if first is None:
            raise ConfigError("the calibration data has no batches.")
        return {"example_kwargs": first} if isinstance(first, dict) else {"example_inputs": first}

    def _loader(self, section: Dataloader, where: str) -> Loader:
        return Loader(section, where, self.conf.tuning.random_seed)

    def _evaluation(self) -> tuple[Callable[[nn.Module], object] | None, bool]:
        """Return the evaluation, of code or of the file, and whether higher is better."""
        criterion, section = self.conf.tuning.accuracy_criterion, self.conf.evaluation.accuracy
        if self.eval_func is not None:
            return self.eval_func, criterion.higher_is_better
        data = self.eval_dataloader
        if data is None and section is not None and section.dataloader is not None:
            data = self._loader(section.dataloader, "evaluation.accuracy.dataloader")
        if self.metric is not None:
            own = self.metric.make() if isinstance(self.metric, common.Metric) else common.Metric(self.metric).make()
            metrics: tuple[Any, ...] = ((own, 1.0, criterion.higher_is_better),)
        else:
            metrics = metrics_of(section) if section is not None and section.metrics else ()
        if data is None or not metrics:
            if self.metric is not None or self.eval_dataloader is not None:
                what = "a metric" if data is not None else "data"
                raise ConfigError(f"there is no {what} to evaluate with: set eval_func, or eval_dataloader and metric.")
            return None, True
        compare = [getattr(settings, "compare_label", True) for _, settings in section.metrics] if section else [True]
        iterations = section.iteration if section is not None else -1
        after = (
            self.postprocess.postprocess_cls if isinstance(self.postprocess, common.Postprocess) else self.postprocess
        )
        if isinstance(after, type):
            after = after()
        found = Evaluation(
            data=data if iter(data) is not data else list(data),
            metrics=metrics,
            float_model=self.model.model,
            against_float=self.metric is None and not all(compare),
            batches=iterations if iterations > 0 else None,
            postprocess=after if after is not None else postprocess_of(section) if section is not None else None,
        )
        given = "higher_is_better" in criterion.model_fields_set
        return found, criterion.higher_is_better if given else found.higher_is_better
