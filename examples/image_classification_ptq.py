"""Post-training static quantization of a classifier from end to end: `python examples/image_classification_ptq.py`.

Prepare, calibrate, convert; then size, accuracy, three ways to save and load, the weights before and after, and speed.
`--data DIR` takes a trained ResNet-20 and CIFAR-10 pictures; without it a small ResNet is trained on digits first.
"""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from _cifar import FILES, cifar_data, cifar_resnet
from _command import options
from _digits import ResNet, accuracy, digits, trained
from torch import nn

import fxquant as fq


def size_of(model: nn.Module) -> int:
    """Bytes of the saved state_dict."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments, data=FILES)
    torch.manual_seed(0)
    if args.data is None:
        train, test = digits()
        model = trained(ResNet(8 if args.quick else 32), train, epochs=2 if args.quick else 6)
        calibration = list(train.tensors[0][:280].split(70))
    else:
        model, test = cifar_resnet(20, args.data), cifar_data("cifar10-test-2000", args.data)
        calibration = list(cifar_data("cifar10-calib-512", args.data).tensors[0].split(64))
    example = (calibration[0],)

    # 1. quantize
    qconfig = fq.get_default_qconfig("x86")
    prepared = fq.prepare_fx(copy.deepcopy(model), {"": qconfig}, example)
    fq.calibrate(prepared, calibration)
    quantized = fq.convert_fx(prepared)
    print(fq.explain(quantized))

    # 2. size and accuracy
    result = {"float": accuracy(model, test), "int8": accuracy(quantized, test)}
    result["size ratio"] = size_of(quantized) / size_of(model)
    print(f"float: {size_of(model) / 1e3:.0f} kB, top-1 {100 * result['float']:.2f}")
    print(f"int8:  {size_of(quantized) / 1e3:.0f} kB, top-1 {100 * result['int8']:.2f}")

    # 3. save, load, check again
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        torch.save(quantized.state_dict(), folder / "state.pt")
        fresh = fq.convert_fx(fq.prepare_fx(copy.deepcopy(model), {"": qconfig}, example))  # saw no data
        fresh.load_state_dict(torch.load(folder / "state.pt"))
        torch.save(quantized, folder / "whole.pt")
        whole = torch.load(folder / "whole.pt", weights_only=False)
        fq.save(quantized, folder / "model.fq")  # a file without pickled code
        archived = fq.load(folder / "model.fq")
    for name, again in {"state_dict": fresh, "whole model": whole, "model.fq": archived}.items():
        result[name] = accuracy(again, test)
        print(f"{name} loaded again: top-1 {100 * result[name]:.2f}")

    # 4. weights: those of the fused float model beside the integers
    fused = fq.fuse_fx(copy.deepcopy(model))
    weight = fused.conv1.weight.detach()
    difference = (weight - quantized.conv1.weight().dequantize()).abs().max()
    result["weight difference"] = float(difference / weight.abs().max())
    print(
        f"conv1: the largest difference of a weight is {100 * result['weight difference']:.2f}% of the largest weight"
    )

    # 5. speed against float, on every engine that is installed
    if not args.quick:
        fq.benchmark(quantized, example, float_model=model, seconds=1.0)
    return result


if __name__ == "__main__":
    main()
