"""Train with power-of-two scales (TQT), freeze, and export for a device: `python examples/image_classification_qat.py`.

Every scale of the NPU target is a power of two, so that hardware requantizes by shifts. TQT learns their thresholds
together with the weights, from a calibrated start and with the float model as teacher.
`--data DIR` takes a trained ResNet-20 and CIFAR-10 pictures; without it a small ResNet is trained on digits first.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from _cifar import FILES, cifar_data, cifar_resnet
from _command import options
from _digits import ResNet, accuracy, digits, trained
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fxquant as fq

POST_TRAINING = fq.QConfig(activation=fq.Spec(scale="pow2"), weight=fq.Spec(scale="pow2"))
TRAINING = fq.QConfig(activation=fq.Spec(learn="tqt"), weight=fq.Spec(learn="tqt"))


def distance(output: Tensor, wanted: Tensor) -> Tensor:
    """From the teacher's probabilities: with labels a trained network learns little more from its training pictures."""
    return F.kl_div(F.log_softmax(output, 1), wanted, log_target=True, reduction="batchmean")


@torch.no_grad()
def with_teacher(model: torch.nn.Module, data: TensorDataset, batch: int) -> list[tuple[Tensor, Tensor]]:
    return [(images, F.log_softmax(model(images), 1)) for images in data.tensors[0].split(batch)]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments, data=FILES)
    torch.manual_seed(0)
    if args.data is None:
        train, test = digits()
        model = trained(ResNet(8 if args.quick else 32), train, epochs=2 if args.quick else 6)
        calibration = list(train.tensors[0][:280].split(70))
    else:
        model, train, test = (
            cifar_resnet(20, args.data),
            *(cifar_data(name, args.data) for name in ("cifar10-train-5000", "cifar10-test-2000")),
        )
        calibration = list(cifar_data("cifar10-calib-512", args.data).tensors[0].split(64))
    example = (calibration[0][:1],)  # what is exported has batch 1

    # 1. calibrate: where training starts from
    post = fq.prepare_fx(copy.deepcopy(model), {"": POST_TRAINING}, example, target="npu")
    fq.calibrate(post, calibration)

    # 2. train
    prepared = fq.prepare_qat_fx(copy.deepcopy(model).train(), {"": TRAINING}, example, target="npu")
    prepared.load_state_dict(post.state_dict())
    fq.freeze_bn_stats(prepared)
    fq.train_qat(prepared, with_teacher(model, train, 50), distance, epochs=1, lr=1e-4, range_lr=1e-3, progress=False)

    # 3. freeze: every scale is fixed, the shifts fit the device; then integers
    frozen = fq.freeze(prepared)
    converted = fq.convert_fx(frozen, engine="reference")
    result = {
        "float": accuracy(model, test),
        "PTQ": accuracy(fq.convert_fx(post, engine="reference"), test),
        "QAT": accuracy(frozen, test),
        "converted": accuracy(converted, test),
        "forbidden": float(len(fq.check_target(converted, "npu"))),
    }
    print(", ".join(f"{name} {100 * result[name]:.2f}" for name in ("float", "PTQ", "QAT", "converted")))

    # 4. ONNX with batch 1, and what ONNX Runtime makes of it
    with tempfile.TemporaryDirectory() as directory:
        file = fq.export_onnx(converted, Path(directory) / "model.onnx", example)
        print(f"ONNX: {file.stat().st_size / 1e3:.0f} kB")
        result["ONNX Runtime"] = onnxruntime_agreement(file, converted, test.tensors[0][:20])
    return result


@torch.no_grad()
def onnxruntime_agreement(file: Path, model: torch.nn.Module, images: Tensor) -> float:
    """The share of pictures, one by one, on which both see the same class."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    same = [
        int(session.run(None, {name: image.numpy()})[0].argmax()) == int(model(image).argmax())
        for image in images.split(1)
    ]
    share = sum(same) / len(same)
    print(f"ONNX Runtime sees the same class in {100 * share:.0f}% of {len(same)} pictures")
    return share


if __name__ == "__main__":
    main()
