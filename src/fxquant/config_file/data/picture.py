"""A picture with the boxes on it, in any of the forms it has on its way to the model.

The image is a PIL image, an array (height, width, channels), or a tensor (channels, height, width). What moves pixels
moves the boxes (x0, y0, x1, y1) as well, so that a detector can be scored on what it was shown.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fxquant.errors import ConfigError


def pillow() -> ModuleType:
    """PIL.Image, where it is installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("pictures are read with pillow. Run: pip install 'fxquant[images]'") from None
    found: ModuleType = Image
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    image: Any
    boxes: Any = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        if isinstance(self.image, Tensor):
            return int(self.image.shape[-2]), int(self.image.shape[-1])
        if isinstance(self.image, np.ndarray):
            return int(self.image.shape[0]), int(self.image.shape[1])
        return int(self.image.height), int(self.image.width)

    def with_(self, image: object) -> Picture:
        """Return the same boxes on other pixels."""
        return dataclasses.replace(self, image=image)

    def _moved(
        self, image: object, scale: tuple[float, float] = (1.0, 1.0), shift: tuple[float, float] = (0, 0)
    ) -> Picture:
        """Boxes times (x, y), less (x, y)."""
        boxes = self.boxes
        if boxes is not None:
            boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) * [*scale, *scale] - [*shift, *shift]
        return Picture(image=image, boxes=boxes)

    def resize(self, height: int, width: int, method: str = "bilinear") -> Picture:
        """Scale to a size."""
        old_height, old_width = self.size
        scale = (width / old_width, height / old_height)
        if isinstance(self.image, Tensor):
            return self._moved(_resize_tensor(self.image, height, width, method), scale)
        if isinstance(self.image, np.ndarray) and self.image.dtype != np.uint8:
            moved = torch.from_numpy(np.ascontiguousarray(self.image)).float().movedim(-1, 0)
            return self._moved(_resize_tensor(moved, height, width, method).movedim(0, -1).numpy(), scale)
        made = self.as_pil().image.resize((width, height), getattr(pillow().Resampling, method.upper()))
        return self._moved(np.asarray(made) if isinstance(self.image, np.ndarray) else made, scale)

    def crop(self, top: int, left: int, height: int, width: int) -> Picture:
        """Cut out a part; what lies outside of the picture is 0."""
        if isinstance(self.image, Tensor):
            image: Any = _cut(self.image, (top, left), (height, width), first=self.image.dim() - 2)
        elif isinstance(self.image, np.ndarray):
            image = _cut(torch.from_numpy(self.image.copy()), (top, left), (height, width), first=0).numpy()
        else:
            image = self.image.crop((left, top, left + width, top + height))
        return self._moved(image, shift=(left, top))

    def flip(self, *, sideways: bool) -> Picture:
        """Mirror left and right, or top and bottom."""
        height, width = self.size
        if isinstance(self.image, Tensor):
            image: Any = self.image.flip(-1 if sideways else -2)
        elif isinstance(self.image, np.ndarray):
            image = np.flip(self.image, 1 if sideways else 0).copy()
        else:
            turn = pillow().Transpose
            image = self.image.transpose(turn.FLIP_LEFT_RIGHT if sideways else turn.FLIP_TOP_BOTTOM)
        boxes = self.boxes
        if boxes is not None:
            boxes = np.array(boxes, dtype=np.float64).reshape(-1, 4)
            edges, length = ((0, 2), width) if sideways else ((1, 3), height)
            boxes[:, edges] = length - boxes[:, edges[::-1]]
        return Picture(image=image, boxes=boxes)

    def as_pil(self) -> Picture:
        image = self.image
        if isinstance(image, Tensor):
            image = (image.clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()
        if isinstance(image, np.ndarray):
            image = image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
            image = pillow().fromarray(image.astype(np.uint8))
        return self.with_(image)

    def as_array(self) -> Picture:
        image = self.image.numpy() if isinstance(self.image, Tensor) else np.array(self.image)
        return self.with_(image[..., None] if image.ndim == 2 else image)

    def as_tensor(self) -> Picture:
        """(channels, height, width), bytes as 0 to 1."""
        if isinstance(self.image, Tensor):
            return self
        array = self.as_array().image
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if tensor.dim() == 3:
            tensor = tensor.movedim(-1, 0).contiguous()
        return self.with_(tensor.float() / 255 if array.dtype == np.uint8 else tensor.float())


def _resize_tensor(image: Tensor, height: int, width: int, method: str) -> Tensor:
    smooth = {} if method == "nearest" else {"align_corners": False, "antialias": True}
    return torch.nn.functional.interpolate(image[None].float(), (height, width), mode=method, **smooth)[0]


def _cut(image: Tensor, start: tuple[int, int], size: tuple[int, int], *, first: int) -> Tensor:
    """Return a part of two axes, from `first` on, with zeros beyond the edges."""
    made = image.new_zeros((*image.shape[:first], *size, *image.shape[first + 2 :]))
    source: list[slice] = [slice(None)] * image.dim()
    target: list[slice] = [slice(None)] * image.dim()
    for axis, (at, length) in enumerate(zip(start, size, strict=True), first):
        low, high = max(at, 0), min(at + length, image.shape[axis])
        source[axis], target[axis] = slice(low, max(high, low)), slice(low - at, max(high, low) - at)
    made[tuple(target)] = image[tuple(source)]
    return made
