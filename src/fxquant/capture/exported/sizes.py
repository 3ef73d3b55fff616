"""What torch.export took for granted about sizes, as conditions that can be checked at run time.

Export writes its guards as Python expressions such as `L['x'].size()[1] % 2 == 0`. Here they become expressions over
`s[tensor][dim]`, read as data (capture/conditions.py), together with the sizes that export fixed.
"""

from __future__ import annotations

import ast

import torch
from torch.utils import _pytree as pytree

from fxquant.capture.conditions import Condition, read_condition


class _NotASize(Exception):
    pass


class _Rewrite(ast.NodeTransformer):
    def __init__(self, index: dict[str, int]) -> None:
        self.index = index

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "size":
            source = ast.unparse(call.func.value)
            if source not in self.index:
                raise _NotASize(source)
            return ast.parse(f"s[{self.index[source]}][{ast.unparse(node.slice)}]", mode="eval").body
        raise _NotASize(ast.unparse(node))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        # `math.ceil`, and in newer torch `torch.sym_max` for `max`
        if ast.unparse(node.value) not in ("math", "torch"):
            raise _NotASize(ast.unparse(node))
        return ast.Name(id=node.attr.removeprefix("sym_"), ctx=ast.Load())


def conditions(
    program: torch.export.ExportedProgram, arguments: dict[str, object], vals: list[torch.Tensor]
) -> list[Condition] | None:
    """Return conditions over the tensors among `arguments` (by name, in order); None if one cannot be written.

    `vals` are the fake tensors of the same tensors, with a plain int wherever export fixed a size.
    """
    tensors = [path for path, leaf in pytree.tree_flatten_with_path(arguments)[0] if isinstance(leaf, torch.Tensor)]
    index = {ast.unparse(ast.parse("L" + pytree.keystr(path))): i for i, path in enumerate(tensors)}
    found: list[Condition] = [
        ("==", ("size", i, dim), size)
        for i, val in enumerate(vals)
        for dim, size in enumerate(val.shape)
        if isinstance(size, int)
    ]
    for text in getattr(program, "_guards_code", None) or ():
        try:
            found.append(read_condition(ast.unparse(_Rewrite(index).visit(ast.parse(text, mode="eval")))))
        except (_NotASize, ValueError):
            return None
    return list(dict.fromkeys(found))
