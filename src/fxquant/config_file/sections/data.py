"""`dataloader`: a dataset, transforms in their order, and how batches are made."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator
from typing_extensions import Self

from fxquant.config_file.sections.section import Choice, Count, Section, Several

Free = dict[str, Any]  # of datasets that are not built in, so that a file with them can be read


class Downloaded(Section):
    """CIFAR10 and its like, as their authors publish them."""

    root: str = "."
    train: bool = False
    download: bool = False


class ImageFolderSettings(Section):
    """`root/class/picture.jpg`."""

    root: str


class ImagenetRawSettings(Section):
    """Pictures below `data_path`, and a list of `name label` lines."""

    data_path: str
    image_list: str | None = None


class COCORawSettings(Section):
    """Pictures, and the annotations of COCO as JSON."""

    root: str
    img_dir: str = "val2017"
    anno_dir: str = "annotations/instances_val2017.json"
    num_cores: int = 28


class Dummy(Section):
    """Random numbers. `shape` has the number of samples in front, and is one shape or a list of them."""

    shape: Several[Any]
    low: Several[float] = Field(default_factory=lambda: [-128.0])
    high: Several[float] = Field(default_factory=lambda: [127.0])
    dtype: Several[str] = Field(default_factory=lambda: ["float32"])
    label: bool = True


class DummyV2(Section):
    """Random numbers: the shape of one sample, and of its label."""

    input_shape: Several[Any]
    label_shape: Several[Any] | None = None
    low: Several[float] = Field(default_factory=lambda: [-128.0])
    high: Several[float] = Field(default_factory=lambda: [127.0])
    dtype: Several[str] = Field(default_factory=lambda: ["float32"])


class Dataset(Choice):
    """One of the datasets, with its settings."""

    CIFAR10: Downloaded | None = None
    CIFAR100: Downloaded | None = None
    MNIST: Downloaded | None = None
    FashionMNIST: Downloaded | None = None
    ImageFolder: ImageFolderSettings | None = None
    ImagenetRaw: ImagenetRawSettings | None = None
    COCORaw: COCORawSettings | None = None
    dummy: Dummy | None = None
    dummy_v2: DummyV2 | None = None
    COCONpy: Free | None = None
    COCORecord: Free | None = None
    VOCRecord: Free | None = None
    TFRecordDataset: Free | None = None
    ImageRecord: Free | None = None
    sparse_dummy_v2: Free | None = None
    GLUE: Free | None = None
    bert: Free | None = None
    mzbert: Free | None = None
    style_transfer: Free | None = None


Size = Several[int]
Method = Literal["bilinear", "nearest", "bicubic"]


class Nothing(Section):
    """A transform without settings."""


class ResizeSettings(Section):
    size: Size
    interpolation: Method = "bilinear"


class Crop(Section):
    size: Size


class RandomResizedCropSettings(Section):
    size: Size
    scale: Several[float] = Field(default_factory=lambda: [0.08, 1.0])
    ratio: Several[float] = Field(default_factory=lambda: [3 / 4, 4 / 3])
    interpolation: Method = "bilinear"


class NormalizeSettings(Section):
    mean: Several[float] = Field(default_factory=lambda: [0.0])
    std: Several[float] = Field(default_factory=lambda: [1.0])
    rescale: Several[float] = Field(default_factory=list)


class TransposeSettings(Section):
    perm: Several[int]


class CastSettings(Section):
    dtype: str = "float32"


class CropResizeSettings(Section):
    x: int
    y: int
    width: int
    height: int
    size: Size
    interpolation: Method = "bilinear"


class CropToBoundingBoxSettings(Section):
    offset_height: int
    offset_width: int
    target_height: int
    target_width: int


class PaddedCenterCropSettings(Section):
    size: Size
    crop_padding: int = 32


class ResizeWithRatioSettings(Section):
    min_dim: int = 800
    max_dim: int = 1365
    padding: bool = False
    constant_value: float = 0.0


class ResizeWithAspectRatioSettings(Section):
    height: int
    width: int
    scale: float = 87.5
    inter_pol: Method = "bilinear"


class ResizeCropImagenetSettings(Section):
    height: int
    width: int
    random_crop: bool = False
    resize_side: int = 256
    resize_method: Method = "bilinear"
    random_flip_left_right: bool = False
    mean_value: Several[float] = Field(default_factory=lambda: [0.0, 0.0, 0.0])
    scale: float = 1.0
    data_format: str = "channels_last"
    subpixels: str = "RGB"


class BilinearImagenetSettings(Section):
    height: int
    width: int
    central_fraction: float = 0.875
    mean_value: Several[float] = Field(default_factory=lambda: [0.0, 0.0, 0.0])
    scale: float = 1.0


class AlignImageChannelSettings(Section):
    dim: int = 3


class Transforms(Section):
    """The transforms; they are applied in the order of the file."""

    _order: tuple[str, ...] = PrivateAttr(default=())

    Resize: ResizeSettings | None = None
    CenterCrop: Crop | None = None
    RandomResizedCrop: RandomResizedCropSettings | None = None
    RandomCrop: Crop | None = None
    RandomHorizontalFlip: Nothing | None = None
    RandomVerticalFlip: Nothing | None = None
    ToTensor: Nothing | None = None
    ToPILImage: Nothing | None = None
    ToNDArray: Nothing | None = None
    ToArray: Nothing | None = None
    Normalize: NormalizeSettings | None = None
    Rescale: Nothing | None = None
    Transpose: TransposeSettings | None = None
    Cast: CastSettings | None = None
    CropResize: CropResizeSettings | None = None
    CropToBoundingBox: CropToBoundingBoxSettings | None = None
    PaddedCenterCrop: PaddedCenterCropSettings | None = None
    ResizeWithRatio: ResizeWithRatioSettings | None = None
    ResizeWithAspectRatio: ResizeWithAspectRatioSettings | None = None
    ResizeCropImagenet: ResizeCropImagenetSettings | None = None
    BilinearImagenet: BilinearImagenetSettings | None = None
    AlignImageChannel: AlignImageChannelSettings | None = None
    QuantizedInput: Free | None = None
    ParseDecodeImagenet: Nothing | None = None
    ParseDecodeCoco: Nothing | None = None
    ParseDecodeVoc: Nothing | None = None

    @classmethod
    def _without_null(cls, value: dict[str, object]) -> dict[str, object]:
        return {key: {} if each is None else each for key, each in value.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _in_order(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(value)
        made._order = tuple(value) if isinstance(value, dict) else ()
        return made

    @property
    def steps(self) -> list[tuple[str, object]]:
        """The transforms in their order, each with its settings."""
        return [(name, getattr(self, name)) for name in self._order]


class LabelBalanceSettings(Section):
    size: int


class Filter(Section):
    LabelBalance: LabelBalanceSettings


class Dataloader(Section):
    """How batches are read, when the code of the user gives none."""

    dataset: Dataset
    batch_size: Count = 1
    transform: Transforms = Field(default_factory=Transforms)
    filter: Filter | None = None
    last_batch: Literal["rollover", "discard"] = "rollover"
    shuffle: bool = False
    distributed: bool = False
