"""The transforms that a file can name: a function of the picture and its settings each, in one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fxquant.config_file.data.picture import Picture
from fxquant.config_file.sections.data import (
    AlignImageChannelSettings,
    BilinearImagenetSettings,
    CastSettings,
    Crop,
    CropResizeSettings,
    NormalizeSettings,
    PaddedCenterCropSettings,
    RandomResizedCropSettings,
    ResizeCropImagenetSettings,
    ResizeSettings,
    ResizeWithAspectRatioSettings,
    ResizeWithRatioSettings,
    Transforms,
    TransposeSettings,
)
from fxquant.errors import ConfigError

Step = Callable[[Picture, Any, torch.Generator], Picture]


def apply(steps: list[tuple[str, object]], picture: Picture, rng: torch.Generator) -> Picture:
    """Apply transforms in their order. What is random is drawn from `rng`."""
    for name, settings in steps:
        picture = TRANSFORMS[name](picture, settings, rng)
    return picture


def check(transforms: Transforms, where: str) -> list[tuple[str, object]]:
    """Return the steps of a file, if all of them are built in."""
    for name, _ in transforms.steps:
        if name not in TRANSFORMS:
            raise ConfigError(
                f"{where}: the transform {name} is for records of other frameworks. Leave it out, or set the "
                "dataloader in code: quantizer.calib_dataloader = ..."
            )
    names = [name for name, _ in transforms.steps]
    if "ToTensor" in names and "Normalize" in names[: names.index("ToTensor")]:
        raise ConfigError(
            f"{where}: the transform Normalize comes before ToTensor, which turns bytes into 0 to 1. They are applied "
            "in the order of the file: put ToTensor first. (Tools that sort keys change the order.)"
        )
    return transforms.steps


def _pair(size: list[int]) -> tuple[int, int]:
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def _resize(picture: Picture, settings: ResizeSettings, rng: torch.Generator) -> Picture:
    """One number is for the shorter side, two are height and width."""
    height, width = picture.size
    if len(settings.size) == 1:
        scale = settings.size[0] / min(height, width)
        # as torchvision: the longer side is cut down to a whole number
        height, width = (
            settings.size[0] if side == min(height, width) else int(side * scale) for side in (height, width)
        )
    else:
        height, width = settings.size[:2]
    return picture.resize(height, width, settings.interpolation)


def _center(picture: Picture, height: int, width: int) -> Picture:
    top, left = round((picture.size[0] - height) / 2), round((picture.size[1] - width) / 2)
    return picture.crop(top, left, height, width)


def _draw(rng: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=rng))


def _random_crop(picture: Picture, settings: Crop, rng: torch.Generator) -> Picture:
    height, width = _pair(settings.size)
    top = int(_draw(rng, 0, max(picture.size[0] - height, 0) + 1 - 1e-6))
    left = int(_draw(rng, 0, max(picture.size[1] - width, 0) + 1 - 1e-6))
    return picture.crop(top, left, height, width)


def _random_resized_crop(picture: Picture, settings: RandomResizedCropSettings, rng: torch.Generator) -> Picture:
    height, width = picture.size
    for _ in range(10):
        area = height * width * _draw(rng, settings.scale[0], settings.scale[1])
        ratio = math.exp(_draw(rng, math.log(settings.ratio[0]), math.log(settings.ratio[1])))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            top, left = int(_draw(rng, 0, height - h + 1 - 1e-6)), int(_draw(rng, 0, width - w + 1 - 1e-6))
            return picture.crop(top, left, h, w).resize(*_pair(settings.size), settings.interpolation)
    side = min(height, width)
    return _center(picture, side, side).resize(*_pair(settings.size), settings.interpolation)


def _flip(sideways: bool) -> Step:
    def flip(picture: Picture, settings: object, rng: torch.Generator) -> Picture:
        return picture.flip(sideways=sideways) if _draw(rng, 0, 1) < 0.5 else picture

    return flip


def _normalize(picture: Picture, settings: NormalizeSettings, rng: torch.Generator) -> Picture:
    """(x / rescale - mean) / std, by channel; `rescale` is [shift, scale] as some files have it."""
    image = picture.image if isinstance(picture.image, Tensor) else picture.as_array().image.astype(np.float32)
    shape = (-1, 1, 1) if isinstance(image, Tensor) else (-1,)
    as_like: Any = torch.tensor if isinstance(image, Tensor) else np.array
    if settings.rescale:
        shift, scale = settings.rescale if len(settings.rescale) == 2 else (0.0, settings.rescale[0])
        image = (image - shift) / scale
    mean = as_like(settings.mean, dtype=image.dtype).reshape(shape)
    return picture.with_((image - mean) / as_like(settings.std, dtype=image.dtype).reshape(shape))


def _transpose(picture: Picture, settings: TransposeSettings, rng: torch.Generator) -> Picture:
    image = picture.image if isinstance(picture.image, Tensor) else picture.as_array().image
    return picture.with_(image.permute(*settings.perm) if isinstance(image, Tensor) else image.transpose(settings.perm))


def _cast(picture: Picture, settings: CastSettings, rng: torch.Generator) -> Picture:
    if isinstance(picture.image, Tensor):
        dtype = getattr(torch, settings.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"transform Cast: dtype {settings.dtype!r} is unknown. Give one such as float32.")
        return picture.with_(picture.image.to(dtype))
    return picture.with_(picture.as_array().image.astype(settings.dtype))


def _rescale(picture: Picture, settings: object, rng: torch.Generator) -> Picture:
    image = picture.image if isinstance(picture.image, Tensor) else picture.as_array().image
    return picture.with_(image / 255 if isinstance(image, Tensor) else image.astype(np.float32) / 255)


def _crop_resize(picture: Picture, settings: CropResizeSettings, rng: torch.Generator) -> Picture:
    cut = picture.crop(settings.y, settings.x, settings.height, settings.width)
    return cut.resize(*_pair(settings.size), settings.interpolation)


def _padded_center(picture: Picture, settings: PaddedCenterCropSettings, rng: torch.Generator) -> Picture:
    """Return the middle, less a border of which `crop_padding` pixels would be left at the final size."""
    size = max(_pair(settings.size))
    side = round(size / (size + settings.crop_padding) * min(picture.size))
    return _center(picture, side, side)


def _with_ratio(picture: Picture, settings: ResizeWithRatioSettings, rng: torch.Generator) -> Picture:
    """The shorter side becomes `min_dim`, unless the longer one would be over `max_dim`."""
    height, width = picture.size
    scale = min(max(1.0, settings.min_dim / min(height, width)), settings.max_dim / max(height, width))
    made = picture.resize(round(height * scale), round(width * scale))
    if not settings.padding:
        return made
    array = made.as_array()
    top, left = (settings.max_dim - made.size[0]) // 2, (settings.max_dim - made.size[1]) // 2
    padded = array.crop(-top, -left, settings.max_dim, settings.max_dim)
    if settings.constant_value:
        inside = np.zeros(padded.image.shape[:2], dtype=bool)
        inside[top : top + made.size[0], left : left + made.size[1]] = True
        padded.image[~inside] = settings.constant_value
    return padded


def _with_aspect(picture: Picture, settings: ResizeWithAspectRatioSettings, rng: torch.Generator) -> Picture:
    """Scale so that `scale` percent of the shorter side are left by the crop of the middle."""
    height, width = picture.size
    factor = max(settings.height / height, settings.width / width) * 100 / settings.scale
    made = picture.resize(round(height * factor), round(width * factor), settings.inter_pol)
    return _center(made, settings.height, settings.width)


def _imagenet(picture: Picture, settings: ResizeCropImagenetSettings, rng: torch.Generator) -> Picture:
    height, width = picture.size
    factor = settings.resize_side / min(height, width)
    made = picture.resize(round(height * factor), round(width * factor), settings.resize_method)
    if settings.random_crop:
        top = int(_draw(rng, 0, made.size[0] - settings.height + 1 - 1e-6))
        made = made.crop(
            top, int(_draw(rng, 0, made.size[1] - settings.width + 1 - 1e-6)), settings.height, settings.width
        )
    else:
        made = _center(made, settings.height, settings.width)
    if settings.random_flip_left_right:
        made = _flip(True)(made, None, rng)
    array = made.as_array().image.astype(np.float32)
    array = array[..., ::-1] if settings.subpixels == "BGR" else array
    array = (array - np.array(settings.mean_value, dtype=np.float32)) * settings.scale
    first = settings.data_format == "channels_first"
    return made.with_(np.ascontiguousarray(array.transpose(2, 0, 1) if first else array))


def _bilinear(picture: Picture, settings: BilinearImagenetSettings, rng: torch.Generator) -> Picture:
    """Return the middle of a picture, 0 to 1, scaled; less the mean, times the scale."""
    height, width = (round(side * settings.central_fraction) for side in picture.size)
    made = _center(picture, height, width).as_array()
    made = made.with_(made.image.astype(np.float32) / 255).resize(settings.height, settings.width)
    return made.with_((made.image - np.array(settings.mean_value, dtype=np.float32)) * settings.scale)


def _align_channels(picture: Picture, settings: AlignImageChannelSettings, rng: torch.Generator) -> Picture:
    array = picture.as_array().image
    if array.shape[-1] < settings.dim:
        array = np.repeat(array[..., :1], settings.dim, axis=-1)
    return picture.with_(np.ascontiguousarray(array[..., : settings.dim]))


TRANSFORMS: dict[str, Step] = {
    "Resize": _resize,
    "CenterCrop": lambda picture, settings, rng: _center(picture, *_pair(settings.size)),
    "RandomResizedCrop": _random_resized_crop,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _flip(sideways=True),
    "RandomVerticalFlip": _flip(sideways=False),
    "ToTensor": lambda picture, settings, rng: picture.as_tensor(),
    "ToPILImage": lambda picture, settings, rng: picture.as_pil(),
    "ToNDArray": lambda picture, settings, rng: picture.as_array(),
    "ToArray": lambda picture, settings, rng: picture.as_array(),
    "Normalize": _normalize,
    "Rescale": _rescale,
    "Transpose": _transpose,
    "Cast": _cast,
    "CropResize": _crop_resize,
    "CropToBoundingBox": lambda picture, settings, rng: picture.crop(
        settings.offset_height, settings.offset_width, settings.target_height, settings.target_width
    ),
    "PaddedCenterCrop": _padded_center,
    "ResizeWithRatio": _with_ratio,
    "ResizeWithAspectRatio": _with_aspect,
    "ResizeCropImagenet": _imagenet,
    "BilinearImagenet": _bilinear,
    "AlignImageChannel": _align_channels,
}
