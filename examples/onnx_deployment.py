"""From a float model to a file that ONNX Runtime and OpenVINO run: `python examples/onnx_deployment.py`.

The model is prepared for the runtime that will run it, exported with an open batch, checked against the model here on
the same pictures, and timed.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from _command import options
from _digits import ResNet, accuracy, digits, trained

import fxquant as fq

Run = Callable[[np.ndarray], np.ndarray]


def onnxruntime_session(file: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def openvino_model(file: Path) -> Run:
    import openvino

    # without the hint OpenVINO may compute what is float in bfloat16
    compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: compiled([x])[0]


RUNTIMES = {"onnxruntime": onnxruntime_session, "openvino": openvino_model}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments)
    torch.manual_seed(0)
    train, test = digits()
    model = trained(ResNet(8 if args.quick else 32), train, epochs=2 if args.quick else 6)
    images, labels = test.tensors
    calibration = list(train.tensors[0][:280].split(70))
    result = {"float": accuracy(model, test)}
    for name, load in RUNTIMES.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: pip install 'fxquant[{name}]'")
            continue
        converted = fq.quantize(model, calibration, target=name, engine="reference")
        with tempfile.TemporaryDirectory() as directory:
            file = fq.export_onnx(converted, Path(directory) / "model.onnx", (images[:2],), dynamic_batch=True)
            size, run = file.stat().st_size, load(file)
        output = run(images.numpy())
        result[name] = float((output.argmax(1) == labels.numpy()).mean())
        with torch.no_grad():
            result[f"{name} agrees"] = float((output.argmax(1) == converted(images).argmax(1).numpy()).mean())
        times = []
        for _ in range(3 if args.quick else 200):
            started = time.perf_counter()
            run(images[:1].numpy())
            times.append(time.perf_counter() - started)
        print(
            f"{name}: {size / 1e3:.0f} kB, top-1 {100 * result[name]:.2f} (float {100 * result['float']:.2f}), the "
            f"class seen here in {100 * result[f'{name} agrees']:.1f}%, {1e3 * sorted(times)[len(times) // 2]:.2f} ms"
        )
    return result


if __name__ == "__main__":
    main()
