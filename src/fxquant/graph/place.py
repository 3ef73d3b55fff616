"""What an op is called in tables, and by rules that name single ops: `layer1.0.conv1`, `layer1.0:add`, `add_1`."""

from __future__ import annotations

import re


def name_place(region: str, path: str, node: str, is_weighted: bool) -> str:
    """Return the module of an op; with the name of the node, for one that is not a module by itself."""
    by_itself = path and (_letters(node) == _letters(path[len(region) :]) or (path == region and is_weighted))
    return path if by_itself else f"{path}:{node}".lstrip(":")


def _letters(name: str) -> str:
    """Return the letters and digits of a name, all that torch.fx keeps of a path when it names a node after it."""
    return re.sub(r"[\W_]+", "", name).lower()
