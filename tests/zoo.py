"""Tiny models, one per thing that quantization must get right. Tests take them from the table `ZOO`.

Every factory is deterministic, returns the model in eval mode, and gives its norms statistics and weights that are
not the identity, so that folding them is really tested. All can be traced symbolically and exported, also with a
dynamic batch: dim 0 of every tensor that goes in or comes out is the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """How to build a model, and what to call it with: `build()(*inputs(), **kwargs())`."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]]


def randomize_norms(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, NORMS) and module.weight is not None:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)


def images(n: int = 2, c: int = 3, size: int = 16) -> Tensor:
    return torch.randn(n, c, size, size)


def tokens(n: int = 2, t: int = 8, vocab: int = 64) -> Tensor:
    return torch.randint(0, vocab, (n, t))


def conv_bn_relu(cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
    )


class Plain(nn.Module):
    """conv-bn-relu, pooling, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn_relu(3, 8), nn.MaxPool2d(2), conv_bn_relu(8, 16, stride=2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.features(x)), 1))


class ResidualBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU()
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.down is None else self.down(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + short)


class ResNet(nn.Module):
    """Residual add with and without a projection; one relu module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8)
        self.layer1 = ResidualBlock(8, 8)
        self.layer2 = ResidualBlock(8, 16, stride=2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class InvertedResidual(nn.Module):
    """Depthwise conv between two pointwise ones, relu6, linear bottleneck, add."""

    def __init__(self, channels: int = 8, expand: int = 4) -> None:
        super().__init__()
        wide = channels * expand
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(self.depthwise(self.expand(x)))


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.blocks = nn.Sequential(InvertedResidual(), InvertedResidual())
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.blocks(self.stem(x)))
        return self.head(x.flatten(1))


class SqueezeExcite(nn.Module):
    """silu, then channels scaled by sigmoid of a pooled branch."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)
        self.act = nn.SiLU()
        self.reduce = nn.Conv2d(channels, 4, 1)
        self.expand = nn.Conv2d(4, channels, 1)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.conv(x)))
        gate = torch.sigmoid(self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))
        return self.head((x * gate).mean((2, 3)))


class DenseNet(nn.Module):
    """Every layer reads the cat of all before; the norm comes before the conv, so it cannot be folded."""

    def __init__(self, growth: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        sizes = [8 + i * growth for i in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(n, growth, 3, padding=1, bias=False) for n in sizes)
        self.head = nn.Linear(8 + layers * growth, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class FunctionalMlp(nn.Module):
    """F.linear on bare parameters, with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(32, 16) / 4)
        self.b1 = nn.Parameter(torch.randn(32) / 4)
        self.w2 = nn.Parameter(torch.randn(32, 32) / 6)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.linear(x, self.w1, self.b1))
        x = F.relu(F.linear(x, self.w2))
        return self.out(x)


class FunctionalConv(nn.Module):
    """F.conv2d with default stride, F.batch_norm on bare buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3) / 5)
        self.gamma = nn.Parameter(torch.rand(8) + 0.5)
        self.beta = nn.Parameter(torch.rand(8) - 0.5)
        self.register_buffer("mean", torch.rand(8) - 0.5)
        self.register_buffer("var", torch.rand(8) + 0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(F.conv2d(x, self.weight), self.mean, self.var, self.gamma, self.beta)
        return self.head(F.relu(x).mean((2, 3)))


class SharedConv(nn.Module):
    """One conv called twice, on inputs of different range."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn_relu(3, 8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.conv(x))
        x = F.relu(self.conv(x * 4.0))
        return self.head(x.mean((2, 3)))


class SharedBatchNorm(nn.Module):
    """A batch norm whose conv output has another reader: folding there would change it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head((F.relu(self.bn(x)) + x).mean((2, 3)))


class TiedLanguageModel(nn.Module):
    """The embedding's weight is the head's weight too."""

    def __init__(self, vocab: int = 64, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.lm_head(self.norm(x + F.gelu(self.mix(x))))


class EncoderBlock(nn.Module):
    """Pre-norm attention through sdpa with view(*shape) and permute, then a gelu MLP."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * dim, dim)

    def attend(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        shape = (n, t, 3, self.heads, c // self.heads)
        q, k, v = self.qkv(x).view(*shape).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(n, t, c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, dim: int = 32, patch: int = 4, size: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) / 4)
        self.position = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, dim) / 4)
        self.block = EncoderBlock(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.block(x))[:, 0])


class MaskedAttention(nn.Module):
    """Token ids and a padding mask that becomes an additive mask of -inf, or of the dtype's lowest number."""

    def __init__(self, *, lowest: float, vocab: int = 64, dim: int = 16) -> None:
        super().__init__()
        self.lowest = lowest
        self.embed = nn.Embedding(vocab, dim)
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        bias = torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask == 0, self.lowest)
        scores = torch.matmul(self.q(x), self.k(x).transpose(-2, -1)) / 4.0
        attention = torch.softmax(scores + bias.unsqueeze(1), dim=-1)
        x = self.norm(x + torch.matmul(attention, self.v(x)))
        return self.head(torch.tanh(x[:, 0]))


def token_mask() -> Tensor:
    return torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])


class Conv1dNet(nn.Module):
    """conv1d down, conv-transpose1d up, both with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(4, 8, 5, stride=2, padding=2)
        self.bn1 = nn.BatchNorm1d(8)
        self.up = nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1)
        self.bn2 = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.down(x)))
        return torch.tanh(self.bn2(self.up(x)))


class Conv3dNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm3d(4)
        self.pool = nn.MaxPool3d(2)
        self.up = nn.ConvTranspose3d(4, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.pool(F.relu(self.bn(self.conv(x)))))


class UNet(nn.Module):
    """Skip connections by cat; one step up by conv-transpose (grouped, with batch norm), one by interpolate."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = conv_bn_relu(3, 8)
        self.enc2 = conv_bn_relu(8, 16)
        self.middle = conv_bn_relu(16, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2, groups=2)
        self.up_bn = nn.BatchNorm2d(8)
        self.dec2 = conv_bn_relu(24, 8)
        self.dec1 = conv_bn_relu(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.middle(F.avg_pool2d(b, 2))
        y = self.dec2(torch.cat((self.up_bn(self.up(c)), b), dim=1))
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.out(self.dec1(torch.cat((y, a), dim=1)))


class KeywordsToDict(nn.Module):
    """Two inputs by keyword, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 8, 3, stride=2)
        self.side = nn.Linear(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, image: Tensor, side: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        features = F.relu(self.image(image)).mean((2, 3)) + self.side(side) * scale
        return {"logits": self.head(features), "features": features}


class TupleToTuple(nn.Module):
    """A tuple of tensors in, a nested tuple out."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(8, 16)
        self.right = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        a, b = pair
        left, right = F.relu(self.left(a)), F.relu(self.right(b))
        return self.head(left + right), (left, right)


class WithAttributes(nn.Module):
    """Plain attributes, a property, a class attribute and a method that users of the model rely on."""

    task = "classification"

    def __init__(self) -> None:
        super().__init__()
        self.labels = ["cat", "dog", "bird"]
        self.config = {"threshold": 0.5}
        self.body = conv_bn_relu(3, 8)
        self.head = nn.Linear(8, len(self.labels))

    @property
    def num_classes(self) -> int:
        return len(self.labels)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))

    def predict(self, x: Tensor) -> list[str]:
        return [self.labels[int(i)] for i in self(x).argmax(1)]


class FunctionalDropout(nn.Module):
    """Dropout as a module and as a function that follows self.training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.fc1(x)))
        return self.fc2(F.dropout(x, p=0.5, training=self.training))


class GroupNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.pad(F.relu(self.norm(self.conv1(x))), (1, 1, 1, 1)))


class Activations(nn.Module):
    """Each activation after a conv of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.acts = nn.ModuleList(
            (
                nn.PReLU(8),
                nn.LeakyReLU(0.1),
                nn.ELU(),
                nn.Hardswish(),
                nn.Hardsigmoid(),
                nn.Hardtanh(-2.0, 2.0),
                nn.Tanh(),
                nn.Softmax(dim=1),
            )
        )
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 1) for i in range(len(self.acts)))

    def forward(self, x: Tensor) -> Tensor:
        for conv, act in zip(self.convs, self.acts, strict=True):
            x = act(conv(x))
        return x


class PixelShuffleNet(nn.Module):
    """Super-resolution: the residual is added to the upsampled input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shuffle(self.conv2(F.leaky_relu(self.conv1(x), 0.2)))
        return y + F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


class SplitChunkStack(nn.Module):
    """Branches that split one tensor and join it again; a slice and a subtraction by number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Conv2d(4, 4, 3, padding=1)
        self.right = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.chunk(self.conv(x), 2, dim=1)
        c, d = torch.split(self.left(a), [1, 3], dim=1)
        left = torch.cat([d, c], dim=1)
        joined = torch.stack([left, self.right(b)], dim=1).sum(1)
        return self.head((joined[:, :, 1:-1] - 0.5).mean((2, 3)))


class InPlace(nn.Module):
    """In-place twins on tensors of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv1(x)).relu_()
        y = self.conv2(x)
        y.add_(x)
        y = self.relu(y)
        y *= 0.5
        return self.head(y.mean((2, 3)))


class LinearBatchNorm(nn.Module):
    """Batch norm after a linear layer, and a linear that no batch norm follows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.bn = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.bn(self.fc1(x))))


def _seeded(make: Callable[[], Any], seed: int) -> Callable[[], Any]:
    """`make` from a fixed seed, leaving the caller's random state alone."""

    def call() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make()

    return call


def entry(
    make: Callable[[], nn.Module],
    inputs: Callable[[], tuple[Any, ...]],
    kwargs: Callable[[], dict[str, Any]] = dict,
) -> Entry:
    def build() -> nn.Module:
        model = make()
        with torch.no_grad():
            randomize_norms(model)
        return model.eval()

    return Entry(build=_seeded(build, 1), inputs=_seeded(inputs, 2), kwargs=_seeded(kwargs, 3))


ZOO: dict[str, Entry] = {
    "plain": entry(Plain, lambda: (images(),)),
    "resnet": entry(ResNet, lambda: (images(),)),
    "mobilenet": entry(MobileNet, lambda: (images(),)),
    "squeeze_excite": entry(SqueezeExcite, lambda: (images(),)),
    "densenet": entry(DenseNet, lambda: (images(),)),
    "functional_mlp": entry(FunctionalMlp, lambda: (torch.randn(4, 16),)),
    "functional_conv": entry(FunctionalConv, lambda: (images(),)),
    "shared_conv": entry(SharedConv, lambda: (images(),)),
    "shared_batch_norm": entry(SharedBatchNorm, lambda: (images(),)),
    "linear_batch_norm": entry(LinearBatchNorm, lambda: (torch.randn(4, 16),)),
    "tied_lm": entry(TiedLanguageModel, lambda: (tokens(),)),
    "encoder_block": entry(EncoderBlock, lambda: (torch.randn(2, 8, 32),)),
    "vision_transformer": entry(VisionTransformer, lambda: (images(),)),
    "masked_inf": entry(lambda: MaskedAttention(lowest=float("-inf")), lambda: (tokens(), token_mask())),
    "masked_lowest": entry(
        lambda: MaskedAttention(lowest=torch.finfo(torch.float32).min), lambda: (tokens(), token_mask())
    ),
    "conv1d": entry(Conv1dNet, lambda: (torch.randn(2, 4, 16),)),
    "conv3d": entry(Conv3dNet, lambda: (torch.randn(2, 2, 6, 6, 6),)),
    "unet": entry(UNet, lambda: (images(),)),
    "keywords_to_dict": entry(KeywordsToDict, tuple, lambda: {"image": images(), "side": torch.randn(2, 5)}),
    "tuple_to_tuple": entry(TupleToTuple, lambda: ((torch.randn(2, 8), torch.randn(2, 8)),)),
    "with_attributes": entry(WithAttributes, lambda: (images(),)),
    "functional_dropout": entry(FunctionalDropout, lambda: (torch.randn(4, 16),)),
    "group_norm": entry(GroupNormNet, lambda: (images(),)),
    "activations": entry(Activations, lambda: (images(),)),
    "pixel_shuffle": entry(PixelShuffleNet, lambda: (images(size=8),)),
    "split_chunk_stack": entry(SplitChunkStack, lambda: (images(),)),
    "in_place": entry(InPlace, lambda: (images(),)),
}


def build(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model of the zoo, in eval mode, with its inputs."""
    entry = ZOO[name]
    torch.manual_seed(0)
    return entry.build().eval(), entry.inputs(), entry.kwargs()


def run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors of what a model gives."""
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]
