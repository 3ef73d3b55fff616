"""What a file may say of a module of torch.nn or fxquant.modules: the classes, their fields, and what a field may hold.

A field is a parameter of the constructor, or one of the few that the constructor derives from them. Its value is plain,
of a type and range that go by the field's name. A function is the value of `activation` only, and one of a few.
"""

from __future__ import annotations

import functools
import inspect
import math

from torch import nn

from fxquant.archive.language import ACTIVATIONS
from fxquant.errors import ArchiveError
from fxquant.modules import attention, cells, recurrent, substitute, transformer

MOST = 2**31 - 1  # of any whole number in a setting

_BASE = frozenset(nn.Module().__dict__)
_WITHOUT = (  # made at the first call, or with state that is not plain, or with devices and processes of their own
    *(nn.modules.lazy.LazyModuleMixin, nn.RNNBase, nn.DataParallel, nn.Container),
    *(
        nn.CTCLoss,
        nn.CrossMapLRN2d,
    ),  # one trusts its labels, the other loops as often as a setting says
)
_MORE: dict[str, tuple[type[nn.Module], ...]] = {  # fields that constructors derive
    "transposed": (nn.modules.conv._ConvNd,),
    "output_padding": (nn.modules.conv._ConvNd,),
    "_reversed_padding_repeated_twice": (nn.modules.conv._ConvNd,),
    "_qkv_same_embed_dim": (nn.MultiheadAttention,),
    "head_dim": (nn.MultiheadAttention, attention.MultiheadAttention),
    "bias_k": (nn.MultiheadAttention, attention.MultiheadAttention),
    "bias_v": (nn.MultiheadAttention, attention.MultiheadAttention),
    "min_val": (nn.ReLU6,),
    "max_val": (nn.ReLU6,),
    "norm": (nn.PairwiseDistance,),
    "value": (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    "shortlist_size": (nn.AdaptiveLogSoftmaxWithLoss,),
    "n_clusters": (nn.AdaptiveLogSoftmaxWithLoss,),
    "head_size": (nn.AdaptiveLogSoftmaxWithLoss,),
    "_size": (nn.ParameterList,),
    "_keys": (nn.ParameterDict,),
    "name": (nn.Upsample,),
    "mode": (nn.Upsample,),
    "align_corners": (nn.Upsample,),
    "recompute_scale_factor": (nn.Upsample,),
    "use_nested_tensor": (nn.TransformerEncoder, transformer.TransformerEncoder),
    "activation_relu_or_gelu": (nn.TransformerEncoderLayer, transformer.TransformerEncoderLayer),
}
_POSITIVE = frozenset(  # whole numbers above 0, or tuples of them
    (
        *("in_channels", "out_channels", "in_features", "out_features", "in1_features", "in2_features", "groups"),
        *("kernel_size", "stride", "dilation", "num_groups", "num_channels", "num_heads", "embed_dim", "head_dim"),
        *("num_embeddings", "embedding_dim", "upscale_factor", "downscale_factor", "input_size", "hidden_size"),
        *("num_layers", "kdim", "vdim", "normalized_shape", "num_parameters"),
    )
)
_NATURAL = frozenset(("output_padding", "proj_size", "_size", "output_size"))  # 0 too
_MAYBE_NONE = frozenset(("stride", "output_size", "kdim", "vdim"))  # of those above
_WORDS = {
    "padding": ("same", "valid"),
    "padding_mode": ("zeros", "reflect", "replicate", "circular"),
    "mode": ("nearest", "linear", "bilinear", "bicubic", "trilinear", "area", "nearest-exact", "sum", "mean", "max"),
    "approximate": ("none", "tanh"),
    "nonlinearity": ("tanh", "relu"),
    "reduction": ("none", "mean", "sum", "batchmean"),
    "name": ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"),
}


@functools.cache
def stock_classes() -> dict[str, type[nn.Module]]:
    """Return the module classes that a file may name, by qualified name."""
    found = [*vars(nn).values(), nn.modules.linear.NonDynamicallyQuantizableLinear]
    for source in (attention, cells, recurrent, substitute, transformer):
        found += vars(source).values()
    classes = (value for value in found if isinstance(value, type) and issubclass(value, nn.Module))
    return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes if not issubclass(cls, _WITHOUT)}


def fields_of(cls: type[nn.Module]) -> frozenset[str]:
    """Return the settings that a file may give a module of this class."""
    return _fields(f"{cls.__module__}.{cls.__qualname__}")


@functools.cache
def _fields(name: str) -> frozenset[str]:
    cls = stock_classes()[name]
    stands_for = getattr(cls, "stands_for", None)
    sources = (*cls.__mro__, *(stands_for.__mro__ if stands_for is not None else ()))
    found = {name for name, owners in _MORE.items() if issubclass(cls, owners)}
    for source in sources:
        if issubclass(source, nn.Module) and source is not nn.Module and "__init__" in vars(source):
            found |= set(inspect.signature(source.__init__).parameters)
    return frozenset(found - {"self", "args", "kwargs", "device", "dtype", "module"})


def check_settings(cls: type[nn.Module], settings: object) -> dict[str, object]:
    """Return the settings that the class has fields for; an ArchiveError if one does not fit, or would hide a method.

    Others are left out: what users and libraries write on modules means nothing to these classes.
    """
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise ArchiveError("the settings of a module are not a dict of names.")
    known = {key: value for key, value in settings.items() if key in fields_of(cls)}
    for key in settings:
        if key not in known and (hasattr(cls, key) or key in _BASE):
            raise ArchiveError(f"a setting {key!r} would hide what {cls.__name__} has by that name.")
    for key, value in known.items():
        if not _fits(key, value):
            raise ArchiveError(f"a {cls.__name__} has {key}={_short(value)}, which it cannot have.")
    return known


def _fits(key: str, value: object) -> bool:
    if key == "activation":
        return any(value is function for function in ACTIVATIONS)
    if key == "_keys":
        return isinstance(value, dict) and all(isinstance(k, str) and v is None for k, v in value.items())
    if isinstance(value, str):
        return value in _WORDS.get(key, ())
    if value is None:
        return key not in _POSITIVE | _NATURAL or key in _MAYBE_NONE
    if isinstance(value, (tuple, list)):
        return len(value) <= 4096 and all(_fits_number(key, item) for item in value)
    return _fits_number(key, value)


def _fits_number(key: str, value: object) -> bool:
    if value is None:
        return key == "output_size"  # as the input is
    if isinstance(value, float):
        return key not in _POSITIVE | _NATURAL and (math.isfinite(value) or key in ("min_val", "max_val", "value"))
    if not isinstance(value, int) or abs(value) > MOST:
        return False
    if key in _POSITIVE | _NATURAL and isinstance(value, bool):
        return False
    return value > 0 if key in _POSITIVE else value >= 0 if key in _NATURAL else True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"
