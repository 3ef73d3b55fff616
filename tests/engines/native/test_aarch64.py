"""Code for ARM (NEON with dot products, or i8mm), run by qemu: the same generators, other machines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxquant as fq
from fxquant.graph.region import Region
from zoo import ZOO

pytest.importorskip("llvmlite")

from fxquant.engines.native.compiler import module_text, object_code
from fxquant.engines.native.libraries import make_functions
from fxquant.engines.native.machine import NEON, NEON_I8MM, Machine
from fxquant.engines.native.placement import place
from fxquant.engines.native.plain import plain_graph
from fxquant.engines.native.read import read

GCC, QEMU = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")
pytestmark = pytest.mark.skipif(
    GCC is None or QEMU is None, reason="needs aarch64-linux-gnu-gcc and qemu-aarch64-static"
)

MAIN = """
#include <stdio.h>
#include <stdlib.h>
void run0(void *, void *, void *, void *, long, long, long, long, long *);
static void *file(const char *name, long size) {
    void *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    FILE *f = fopen(name, "rb");
    if (!f || fread(memory, 1, size, f) != (size_t)size) exit(2);
    return memory;
}
int main(void) {
    void *slots[2];
    slots[IN] = file("in", IN_BYTES * BATCH);
    slots[1 - IN] = malloc(OUT_BYTES * BATCH);
    run0(aligned_alloc(64, (ARENA + 63) / 64 * 64), 0, file("constants", CONSTANTS), slots, 0, BATCH, 0, 1, 0);
    FILE *f = fopen("out", "wb");
    return fwrite(slots[1 - IN], 1, OUT_BYTES * BATCH, f) != OUT_BYTES * BATCH;
}
"""


def run(model: Region, x: Tensor, directory: Path, machine: Machine) -> tuple[Tensor, Tensor]:
    """What the graph returns, and what the code does."""
    graph = plain_graph(model)
    reader = read(model, graph, (x,), machine)
    placement = place(reader.ops)
    assert {op.level for op in placement.ops} == {0}
    (slot, made), ((node, export),) = next(iter(reader.imports.items())), reader.exports.items()
    constants = reader.constants.packed()
    (directory / "in").write_bytes(x.contiguous().numpy().tobytes())
    (directory / "constants").write_bytes(constants.tobytes())
    (directory / "main.c").write_text(MAIN)
    text = module_text(make_functions(placement, machine), machine)
    (directory / "code.o").write_bytes(object_code(text, machine, reloc="pic"))
    sizes = {
        "IN": slot,
        "IN_BYTES": made.buffer.bytes,
        "OUT_BYTES": export.view.buffer.bytes,
        "ARENA": placement.arena,
        "CONSTANTS": constants.nbytes,
        "BATCH": len(x),
    }
    flags = [f"-D{name}={value}" for name, value in sizes.items()]
    assert GCC is not None and QEMU is not None
    subprocess.run([GCC, "-static", "-O1", *flags, "main.c", "code.o", "-o", "main"], cwd=directory, check=True)
    subprocess.run([QEMU, "-cpu", "max", "./main"], cwd=directory, check=True, timeout=120)
    interpreter = torch.fx.Interpreter(model, garbage_collect_values=False, graph=graph)
    with torch.no_grad():
        interpreter.run(x)
    expected = interpreter.env[node]  # torch takes views of it
    found = np.frombuffer((directory / "out").read_bytes(), np.float32).copy()
    return expected, torch.from_numpy(found).view(expected.shape)


class Mixed(nn.Module):
    """Kernels that the zoo's networks of one call lack."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 20, 3, 2, 1), nn.Conv2d(20, 20, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(20, 12, 3, 2, 1)
        self.pool, self.norm = nn.MaxPool2d(2), nn.LayerNorm(12)
        self.head, self.groups, self.qkv = nn.Linear(12, 5), nn.GroupNorm(4, 12), nn.Linear(12, 36)

    def forward(self, x: Tensor) -> Tensor:
        y = self.groups(nn.functional.silu(self.up(self.pool(self.b(self.a(x)).relu()))))
        y = nn.functional.interpolate(y, size=(5, 3), mode="bilinear")
        y = self.norm(y.flatten(2).transpose(1, 2))
        y = nn.functional.scaled_dot_product_attention(*self.qkv(y).chunk(3, -1))
        return self.head(torch.softmax(y @ y.transpose(1, 2), -1) @ y)[:, 0]


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "squeeze_excite", "mixed"])
@pytest.mark.parametrize("machine", [NEON, NEON_I8MM], ids=lambda machine: machine.name)
def test_agrees(name: str, machine: Machine, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Mixed().eval() if name == "mixed" else ZOO[name].build()
    x = torch.randn(2, 3, 16, 16)
    made = fq.quantize(model, [(x,)], example_inputs=(x,), engine="reference")
    assert isinstance(made, Region)
    expected, actual = run(made, x, tmp_path, machine)
    assert fq_close(expected, actual)


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_floats_agree(mode: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(20, 36), nn.GELU(), nn.Linear(36, 5, bias=False)).eval()
    x = torch.randn(1, 7, 20)
    made = fq.quantize(model, [(x,)], example_inputs=(x,), mode=mode, engine="reference")
    assert isinstance(made, Region)
    expected, actual = run(made, x, tmp_path, NEON)
    assert fq_close(expected, actual)


def fq_close(a: Tensor, b: Tensor) -> bool:
    noise = (a - b).pow(2).sum() / a.pow(2).sum()
    return bool(noise < 1e-3)
