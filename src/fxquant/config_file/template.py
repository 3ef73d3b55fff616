"""The file that `fxquant init` writes."""

from __future__ import annotations

TEMPLATE = """\
# How a model is quantized. `fxquant quantize conf.yaml --model package.module:function` runs it; `fxquant schema` knows
# every key. Files of Neural Compressor 1.x with `framework: pytorch_fx` are read as they are.
version: 1.0

model:
  name: {name}
  framework: pytorch_fx

quantization:
  # post_training_static_quant, post_training_dynamic_quant, post_training_auto_quant, quant_aware_training, weight_only
  approach: {approach}
  calibration:
    sampling_size: 100              # samples that ranges are found from
    # dataloader:                   # or --calibration package.module:function
    #   batch_size: 10
    #   dataset:
    #     ImageFolder: {{root: path/to/pictures}}        # root/class/picture.jpg
    #   transform:
    #     Resize: {{size: 256}}
    #     CenterCrop: {{size: 224}}
    #     ToTensor:
    #     Normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
  # op_wise:                        # what differs for some ops, by path or pattern
  #   head: {{activation: {{dtype: [fp32]}}, weight: {{dtype: [fp32]}}}}

# evaluation:                       # or --evaluate package.module:function
#   accuracy:
#     metric: {{topk: 1}}
#     dataloader:
#       batch_size: 10
#       dataset:
#         ImageFolder: {{root: path/to/pictures}}
#       transform:
#         Resize: {{size: 256}}
#         CenterCrop: {{size: 224}}
#         ToTensor:
#         Normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}

tuning:
  strategy: {{name: basic}}           # basic, mse, bayesian, random, exhaustive
  accuracy_criterion:
    relative: 0.01                  # the share of the float model's accuracy that may be lost; or absolute
  exit_policy:
    timeout: 0                      # seconds; 0 stops at the first model that passes
    max_trials: 100
  random_seed: 1978
  # workspace: {{path: ./workspace}}  # keeps every trial, so that a run that was stopped goes on
"""


def template(name: str = "my_model", approach: str = "post_training_static_quant") -> str:
    """Return a commented file to start from."""
    return TEMPLATE.format(name=name, approach=approach)
