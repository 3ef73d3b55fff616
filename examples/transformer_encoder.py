"""A transformer encoder, quantized static and dynamic, and with int4 weights: `python examples/transformer_encoder.py`.

The task is made up: does a sequence hold the same token twice? nn.TransformerEncoder goes in as it is, padding mask and
all; its linears are int8, and what must not be rounded (the residual stream before a layer norm, masked scores) stays
in float, as `explain` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from _command import options
from torch import Tensor, nn

import fxquant as fq

WORDS, PAD = 24, 0
INT4 = fq.QConfig(weight=fq.Spec(bits=4, granularity="per_group", group_size=16))


class Classifier(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == PAD)
        return self.head(x.mean(1))


def sequences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight tokens, of which some are padding; half of the sequences have one token twice."""
    tokens = torch.stack([torch.randperm(WORDS - 1, generator=generator)[:8] + 1 for _ in range(count)])
    twice = torch.rand(count, generator=generator) < 0.5
    tokens[twice, 1] = tokens[twice, 4]
    lengths = torch.randint(5, 9, (count, 1), generator=generator)
    return tokens.masked_fill(torch.arange(8) >= lengths, PAD), twice.long()


@torch.no_grad()
def accuracy(model: nn.Module, tokens: Tensor, labels: Tensor) -> float:
    return float((model(tokens).argmax(-1) == labels).float().mean())


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    args = options(__doc__, arguments)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Classifier(16, 1) if args.quick else Classifier(64, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(5 if args.quick else 400):
        tokens, labels = sequences(64, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    model.eval()

    test = sequences(400, generator)
    data = [sequences(64, generator)[0] for _ in range(4)]
    static = fq.quantize(model, data)
    models = {
        "float": model,
        "static": static,
        "dynamic": fq.quantize(model, data, mode="dynamic"),
        "int4 weights": fq.quantize(model, data, qconfig_mapping={"": INT4}),
    }
    result = {name: accuracy(each, *test) for name, each in models.items()}
    print("right: " + ", ".join(f"{name} {100 * share:.1f}%" for name, share in result.items()))
    linears = [row for row in fq.explain(static) if row.kind == "linear"]
    result["int8 linears"] = sum(row.status == "int8" for row in linears) / len(linears)
    print(f"{100 * result['int8 linears']:.0f}% of {len(linears)} linears are int8")
    return result


if __name__ == "__main__":
    main()
