"""Detection recipe: YOLOX-Nano with its real weights on COCO pictures, by the calls of examples/detection.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import fxquant as fq
from _peers import nncf_static, onnxruntime_file, onnxruntime_runner, openvino_runner, torch_ao_static
from _rows import Row, size_of
from fxquant.algorithms import BALANCED, FAST, Algorithm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _coco import average_precision, detect, load_pictures, load_yolox
from detection import INT8, POW2, S8_POW2, WEIGHT, calibrated, trained

PLAIN = fq.QConfigMapping().set_global(fq.QConfig(activation=S8_POW2, weight=WEIGHT.with_(scale="pow2")))


def say(epoch: int, loss: float) -> None:
    print(f"    after {epoch} epochs: {loss:.1f} from the teacher on held-out pictures", flush=True)


class Yolox:
    """The rows of YOLOX-Nano: calibrated with 64 pictures of train2017, trained on 126, scored on 128 of val2017."""

    name = "YOLOX-Nano, COCO"

    def __init__(self, data: Path) -> None:
        self.model = load_yolox(data)
        self.train = load_pictures(data, "train2017").images
        self.test = load_pictures(data, "val2017")
        self.calibration = [batch.float() for batch in self.train[:64].split(8)]
        self.pow2: nn.Module | None = None

    def methods(self) -> dict[str, Callable[[], Row]]:
        batches = self.calibration
        made: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
            "float": lambda: self.model,
            "PTQ W8A8": lambda: self.converted(self.default(BALANCED)),
            "PTQ W8A8, effort fast": lambda: self.converted(self.default(FAST)),
            "PTQ W8A8, rules of the example": lambda: self.ptq(INT8),
            "PTQ W8A8 power-of-two, default rules": lambda: self.ptq(PLAIN),
            "PTQ W8A8 power-of-two": lambda: self.converted(self.post()),
            "QAT W8A8 power-of-two": lambda: self.converted(
                trained(self.model, self.post(), self.train, each_epoch=say)
            ),
            "torch.ao FX": lambda: torch_ao_static(self.model, batches),
            "ONNX Runtime": lambda: onnxruntime_runner(onnxruntime_file(self.model, batches)),
            "NNCF": lambda: openvino_runner(nncf_static(self.model, batches), torch.get_num_threads()),
        }
        return {name: lambda name=name, make=make: self.row(name, make()) for name, make in made.items()}

    def timed(self) -> tuple[nn.Module, str]:
        """What goes on to the engines to be timed, and the row that its times belong to."""
        mapping = fq.get_default_qconfig_mapping("x86-vnni")
        prepared = fq.prepare_fx(self.model, mapping, (self.calibration[0][:1],))
        return fq.calibrate(prepared, self.calibration[:2]), "PTQ W8A8"

    def default(self, algorithms: tuple[Algorithm, ...]) -> nn.Module:
        """Calibrated by the rules and algorithms that `quantize` has without any."""
        mapping, example = fq.get_default_qconfig_mapping("x86-vnni"), (self.calibration[0][:1],)
        prepared = fq.prepare_fx(self.model, mapping, example, target="x86-vnni", algorithms=algorithms)
        return fq.calibrate(prepared, self.calibration)

    def ptq(self, mapping: fq.QConfigMapping) -> nn.Module:
        return self.converted(calibrated(self.model, self.calibration, mapping))

    def converted(self, prepared: nn.Module) -> nn.Module:
        return fq.convert_fx(prepared, engine="reference")

    def post(self) -> nn.Module:
        if self.pow2 is None:
            self.pow2 = calibrated(self.model, self.calibration, POW2)
        return self.pow2

    def row(self, method: str, model: Callable[[Tensor], Tensor]) -> Row:
        with torch.no_grad():
            precision, at50 = average_precision(detect(model, self.test.batches(8)), self.test.boxes)
        size = size_of(model)
        return Row(model=self.name, method=method, metric="mAP", value=precision, size=size, note=f"AP50 {at50:.2f}")
