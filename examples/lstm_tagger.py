"""A tagger with an LSTM, quantized static and dynamic: `python examples/lstm_tagger.py`.

The task is made up: a token is tagged 1 if its number is larger than that of the token before it. The LSTM is put in as
fxquant.modules.LSTM, whose linears are int8; its steps run in one call on the native engine, where that is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch
from _command import options
from torch import Tensor, nn

import fxquant as fq

WORDS = 32


class Tagger(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def sentences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, WORDS, (count, length), generator=generator)
    tags = torch.zeros_like(tokens)
    tags[:, 1:] = (tokens[:, 1:] > tokens[:, :-1]).long()
    return tokens, tags


@torch.no_grad()
def accuracy(model: nn.Module, tokens: Tensor, tags: Tensor) -> float:
    return float((model(tokens).argmax(-1) == tags).float().mean())


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    width, length, steps = (16, 6, 30) if args.quick else (48, 16, 400)
    model = Tagger(width)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        tokens, tags = sentences(32, length, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tags.flatten()).backward()
        optimizer.step()
    model.eval()

    test = sentences(200, length, generator)
    data = [sentences(32, length, generator)[0] for _ in range(4)]
    result = {"float": accuracy(model, *test)}
    for mode in ("static", "dynamic"):
        result[mode] = accuracy(fq.quantize(model, data, mode=mode), *test)
    if importlib.util.find_spec("llvmlite") is not None:
        result["static, native"] = accuracy(fq.quantize(model, data, engine="native"), *test)
    print("tags found: " + ", ".join(f"{name} {100 * share:.1f}%" for name, share in result.items()))
    return result


if __name__ == "__main__":
    main()
