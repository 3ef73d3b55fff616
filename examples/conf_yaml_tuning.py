"""Tune by a conf.yaml in the form of Neural Compressor 1.x: `python examples/conf_yaml_tuning.py`.

The file beside this one says how to quantize, and how much accuracy may be lost. `fit()` quantizes, evaluates, and puts
ops back into float until the model is good enough. `fxquant quantize conf.yaml --model module:function` does so, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from _command import options
from _digits import ResNet, accuracy, digits, trained

import fxquant as fq
from fxquant.config_file import Quantization, common


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments)
    torch.manual_seed(0)
    train, test = digits()
    model = trained(ResNet(8 if args.quick else 32), train, epochs=2 if args.quick else 6)
    images, labels = (part[:280].split(70) for part in train.tensors)

    quantizer = Quantization(str(Path(__file__).with_name("conf.yaml")))
    quantizer.model = common.Model(model)
    quantizer.calib_dataloader = list(zip(images, labels, strict=True))
    quantizer.eval_func = lambda candidate: accuracy(candidate, test)
    q_model = quantizer.fit()
    with tempfile.TemporaryDirectory() as directory:
        q_model.save(directory)
        again = fq.load(directory)
    result = {"float": accuracy(model, test), "tuned": accuracy(q_model, test), "loaded": accuracy(again, test)}
    print(", ".join(f"{name} {100 * share:.2f}" for name, share in result.items()))
    return result


if __name__ == "__main__":
    main()
