"""Which programs were found to agree with their graph, kept beside the code, so that none is compared twice."""

from __future__ import annotations

import hashlib
import json

import torch

from fxquant.engines.native.cache import Cache
from fxquant.engines.native.program import Program

Orders = list[tuple[int, ...]]


def _name(program: Program, graph: str) -> str:
    """Return a digest of what a result depends on, but for values.

    That is code, constants and graph, with the layouts of all tensors.
    """
    total = hashlib.sha256(f"{torch.__version__} {program.name} {graph}".encode())
    total.update(program.constants.data)
    return total.hexdigest()


def load_verdict(cache: Cache, program: Program, graph: str) -> Orders | None:
    """Tell how the results lie in memory of a program that agrees with a graph; None if that is not known."""
    found = cache.load(_name(program, graph)) if cache.directory is not None else None
    orders = None if found is None else read_orders(found)
    return orders if orders is not None and len(orders) == len(program.orders) else None


def read_orders(text: bytes) -> Orders | None:
    """Return orders of axes, as they are kept; None for anything else, as another version may have kept it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(order, list) for order in found):
        return None
    if any(type(axis) is not int for order in found for axis in order):
        return None
    return [tuple(order) for order in found] if all(sorted(o) == list(range(len(o))) for o in found) else None


def keep_verdict(cache: Cache, program: Program, graph: str) -> None:
    """Keep that a program agrees with a graph."""
    if cache.directory is not None:
        cache.store(_name(program, graph), json.dumps(program.orders).encode())
