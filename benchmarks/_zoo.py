"""Architectures that nobody here wrote, with random weights and small configurations, for the coverage benchmark.

Each entry builds a model in eval mode and the keyword or positional inputs of one call. torchvision's detection models
need its compiled ops (`nms`, `roi_align`); where they are missing, plain ones written here stand in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from _models import import_timm

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

TORCHVISION = (
    *("alexnet", "vgg11", "resnet18", "resnext50_32x4d", "densenet121", "squeezenet1_1", "mobilenet_v2"),
    *("mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "efficientnet_b0", "regnet_y_400mf", "googlenet"),
    *("inception_v3", "convnext_tiny", "swin_t", "maxvit_t"),
)
SEGMENTATION = ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50")
DETECTION = ("ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn")
TIMM = (
    *("mobilenetv3_small_050", "tf_efficientnet_lite0", "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"),
    *("convnext_atto", "levit_128s", "mobilevit_xxs", "edgenext_xx_small", "ghostnet_050", "repvgg_a0"),
    *("poolformer_s12", "pvt_v2_b0", "xcit_nano_12_p16_224", "mixer_s32_224"),
)
_TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_DECODER = {**_TEXT, "max_position_embeddings": 64}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertModel", _TEXT, "text"),
    "roberta": ("RobertaModel", {**_TEXT, "pad_token_id": 1}, "text"),
    "electra": ("ElectraModel", {**_TEXT, "embedding_size": 32}, "text"),
    "albert": ("AlbertModel", {**_TEXT, "embedding_size": 32}, "text"),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        "text",
    ),
    "mpnet": ("MPNetModel", _TEXT, "text"),
    "deberta_v2": ("DebertaV2Model", _TEXT, "text"),
    "gpt2": ("GPT2Model", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, "text"),
    "gpt_neox": ("GPTNeoXModel", _DECODER, "text"),
    "llama": ("LlamaModel", {**_DECODER, "num_key_value_heads": 2}, "text"),
    "qwen2": ("Qwen2Model", {**_DECODER, "num_key_value_heads": 2}, "text"),
    "opt": (
        "OPTModel",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": 64,
        },
        "text",
    ),
    "bloom": ("BloomModel", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "text"),
    "t5": (
        "T5Model",
        {"vocab_size": 99, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4},
        "seq2seq",
    ),
    "bart": (
        "BartModel",
        {
            "vocab_size": 99,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 64,
        },
        "seq2seq",
    ),
    "vit": (
        "ViTModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
        },
        "image",
    ),
    "segformer": (
        "SegformerModel",
        {
            "hidden_sizes": [16, 32],
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "patch_sizes": [3, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        "image",
    ),
    "swin": (
        "SwinModel",
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "patch_size": 4, "window_size": 4},
        "image",
    ),
    "convnextv2": (
        "ConvNextV2Model",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32},
        "image",
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "conv_dim": [16, 16, 16],
            "conv_stride": [5, 2, 2],
            "conv_kernel": [10, 3, 3],
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 2,
            "num_feat_extract_layers": 3,
        },
        "audio",
    ),
    "whisper": (
        "WhisperModel",
        {
            "vocab_size": 99,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_source_positions": 30,
            "max_target_positions": 40,
            "num_mel_bins": 20,
            "pad_token_id": 1,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
        "speech2text",
    ),
}


def build(name: str) -> Built:
    """A model of `entries`; batch norms that a random signal would fade in know its range, as trained ones do."""
    model, args, kwargs = entries()[name]()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(_keep_signal) for norm in norms]
    with torch.no_grad():
        model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return model, args, kwargs


def _keep_signal(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
    dims = [dim for dim in range(args[0].dim()) if dim != 1]
    var = args[0].var(dims, correction=0)
    if var.mean() < 1e-2:
        norm.running_mean.copy_(args[0].mean(dims))
        norm.running_var.copy_(var)


def entries() -> dict[str, Callable[[], Built]]:
    """Name -> what builds the model and its inputs."""
    found: dict[str, Callable[[], Built]] = {}
    for name in TORCHVISION:
        found[f"torchvision/{name}"] = functools.partial(
            _torchvision, name, size=299 if name == "inception_v3" else 224
        )
    for name in SEGMENTATION:
        found[f"torchvision/{name}"] = functools.partial(_segmentation, name)
    for name in DETECTION:
        found[f"torchvision/{name}"] = functools.partial(_detection, name)
    for name in TIMM:
        found[f"timm/{name}"] = functools.partial(_timm, name)
    for name in TRANSFORMERS:
        found[f"transformers/{name}"] = functools.partial(_transformers, name)
    return found


def _torchvision(name: str, size: int) -> Built:
    import_timm()  # takes care of torchvision's extension
    from torchvision import models

    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **options).eval(), (torch.randn(2, 3, size, size),), {}


def _segmentation(name: str) -> Built:
    import_timm()
    from torchvision import models

    model = models.get_model(name, weights=None, weights_backbone=None).eval()
    return model, (torch.randn(2, 3, 96, 96),), {}


def _detection(name: str) -> Built:
    import_timm()
    _detection_kernels()
    from torchvision import models

    options = {} if "320" in name else {"min_size": 128, "max_size": 160, "score_thresh": 0.0}
    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=5, **options).eval()
    return model, ([torch.rand(3, 128, 128), torch.rand(3, 96, 128)],), {}


def _timm(name: str) -> Built:
    return import_timm().create_model(name, pretrained=False).eval(), (torch.randn(2, 3, 224, 224),), {}


def _transformers(name: str) -> Built:
    import_timm()  # transformers imports torchvision where it is installed
    import transformers

    cls, settings, form = TRANSFORMERS[name]
    model_class = getattr(transformers, cls)
    model = model_class(model_class.config_class(**settings)).eval()
    return model, (), _inputs(form)


def _inputs(form: str) -> dict[str, Tensor]:
    ids = torch.randint(3, 99, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    return {
        "text": {"input_ids": ids, "attention_mask": mask},
        "seq2seq": {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :6]},
        "image": {"pixel_values": torch.randn(2, 3, 32, 32)},
        "audio": {"input_values": torch.randn(2, 2000)},
        "speech2text": {"input_features": torch.randn(2, 20, 60), "decoder_input_ids": ids[:, :6]},
    }[form]


@functools.cache  # the kernels live as long as their Library
def _detection_kernels() -> torch.library.Library | None:
    """Plain CPU kernels for the two ops that detection models call, if torchvision's own did not load."""
    import torchvision
    from torchvision.extension import _has_ops

    if _has_ops():
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "roi_align"):
        library.define(
            "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
            "int sampling_ratio, bool aligned) -> Tensor"
        )
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    for module in (torchvision.ops.boxes, __import__("torchvision.ops.roi_align", fromlist=["x"])):
        module._assert_has_ops, module._has_ops = (lambda: None), (lambda: True)
    return library


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order = scores.argsort(descending=True, stable=True).tolist()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    for index in order:
        others = boxes[kept]
        corner = torch.minimum(boxes[index, 2:], others[:, 2:]) - torch.maximum(boxes[index, :2], others[:, :2])
        shared = corner.clamp(min=0).prod(1)
        if not (shared > threshold * (area[index] + area[kept] - shared)).any():
            kept.append(index)
    return torch.tensor(kept, dtype=torch.long)


def _roi_align(x: Tensor, rois: Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Tensor:
    """Bilinear samples at the bin centres, which is enough to compare a network with its quantized self."""
    shift = 0.5 if aligned else 0.0
    boxes = rois[:, 1:] * scale - shift
    pieces = []
    for roi, box in zip(rois, boxes, strict=True):
        ys = box[1] + (torch.arange(height) + 0.5) * (box[3] - box[1]).clamp(min=1e-3) / height
        xs = box[0] + (torch.arange(width) + 0.5) * (box[2] - box[0]).clamp(min=1e-3) / width
        grid_y = (2 * ys + 1) / x.shape[2] - 1
        grid_x = (2 * xs + 1) / x.shape[3] - 1
        grid = torch.stack(torch.meshgrid(grid_x, grid_y, indexing="xy"), -1)[None].to(x.dtype)
        pieces.append(torch.nn.functional.grid_sample(x[int(roi[0])][None], grid, align_corners=False))
    return torch.cat(pieces) if pieces else x.new_zeros(0, x.shape[1], height, width)
