"""`quantization`: approach, calibration, recipes, and what is asked for by model, op type and op."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from fxquant.config_file.sections.data import Dataloader
from fxquant.config_file.sections.section import Choice, Count, Section, Several

Approach = Literal[
    "post_training_static_quant",
    "post_training_dynamic_quant",
    "post_training_auto_quant",
    "quant_aware_training",
    "weight_only",
]
Granularity = Literal["per_channel", "per_tensor"]
Dtype = Literal["int8", "uint8", "fp32", "bf16", "fp16"]
ComputeDtype = Literal["uint8", "int8", "fp32", "bf16", "None"]
LossType = Literal["CE", "KL", "MSE"]


class Calibration(Section):
    """How many samples are looked at, and where they come from. A list of sizes is a search space."""

    sampling_size: Several[Count] = Field(default_factory=lambda: [100], min_length=1)
    dataloader: Dataloader | None = None


class Recipes(Section):
    scale_propagation_max_pooling: bool = True
    scale_propagation_concat: bool = True
    first_conv_or_matmul_quantization: bool = True
    fast_bias_correction: bool = False
    weight_correction: bool = False


class Advance(Section):
    bias_correction: Literal["weight_empirical"] | None = None


class Weight(Section):
    """Choices for a weight; several values of a field are searched among."""

    granularity: Several[Granularity] | None = None
    scheme: Several[Literal["asym", "sym", "asym_float"]] | None = None
    dtype: Several[Dtype] | None = None
    algorithm: Several[Literal["minmax"]] | None = None
    bit: Several[float] | None = None

    @model_validator(mode="after")
    def _bits(self) -> Self:
        if self.bit is not None and not all(0 < bit <= 7 for bit in self.bit):
            raise ValueError(f"bit is {self.bit}; expected numbers above 0, and 7 at most")
        return self


class Activation(Section):
    """Choices for an activation."""

    granularity: Several[Granularity] | None = None
    scheme: Several[Literal["asym", "sym"]] | None = None
    dtype: Several[Dtype] | None = None
    compute_dtype: Several[ComputeDtype] = Field(default_factory=lambda: list[ComputeDtype](["uint8"]))
    algorithm: Several[Literal["minmax", "kl", "placeholder"]] | None = None


class Wishes(Section):
    """What is asked for of a model, an op type or an op."""

    weight: Weight = Field(default_factory=Weight)
    activation: Activation = Field(default_factory=Activation)


class SGDSettings(Section):
    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class AdamSettings(Section):
    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False


class AdamWSettings(AdamSettings):
    weight_decay: float = 0.01


class Optimizer(Choice):
    SGD: SGDSettings | None = None
    Adam: AdamSettings | None = None
    AdamW: AdamWSettings | None = None


class CrossEntropy(Section):
    reduction: Literal["mean", "sum", "none"] = "mean"
    from_logits: bool = False


class Distillation(Section):
    temperature: float = 1.0
    loss_types: Several[LossType] = Field(default_factory=lambda: list[LossType](["CE", "CE"]))
    loss_weights: Several[float] = Field(default_factory=lambda: [0.5, 0.5])

    @model_validator(mode="after")
    def _sum(self) -> Self:
        if abs(sum(self.loss_weights) - 1) > 1e-6:
            raise ValueError(f"loss_weights are {self.loss_weights}; they have to sum to 1")
        return self


class Criterion(Choice):
    CrossEntropyLoss: CrossEntropy | None = None
    SparseCategoricalCrossentropy: CrossEntropy | None = None
    KnowledgeDistillationLoss: Distillation | None = None
    IntermediateLayersKnowledgeDistillationLoss: dict[str, Any] | None = None


class Train(Section):
    """The training loop of quantization-aware training, when the code of the user has none."""

    optimizer: Optimizer
    criterion: Criterion
    dataloader: Dataloader | None = None
    epoch: Count = 1
    start_epoch: int = Field(default=0, ge=0)
    end_epoch: int | None = None
    iteration: int | None = None
    frequency: int | None = None
    execution_mode: Literal["eager", "graph"] = "eager"
    postprocess: dict[str, Any] | None = None
    hostfile: str | None = None


class Quantization(Section):
    approach: Approach = "post_training_static_quant"
    calibration: Calibration = Field(default_factory=Calibration)
    recipes: Recipes = Field(default_factory=Recipes)
    advance: Advance = Field(default_factory=Advance)
    model_wise: Wishes = Field(default_factory=Wishes)
    optype_wise: dict[str, Wishes] = Field(default_factory=dict)
    op_wise: dict[str, Wishes] = Field(default_factory=dict)
    train: Train | None = None
