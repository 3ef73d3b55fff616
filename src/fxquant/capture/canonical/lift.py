"""Calls of ops on parameters become `call_module` of the stock torch.nn class.

    conv2d(x, get_attr "block.conv.weight", None, [2, 2])     ->     call_module "block.conv"  (nn.Conv2d, stride 2)

The path is that of the module whose code makes the call (`meta["scope"]`), not of the weight: tied weights have
several. Modules of the matching class, subclasses, and modules that own just those tensors are replaced in place, so
state_dict keys stay. A bare parameter `block.w1` becomes a module at `block.w1`. What cannot be said as a stock module
stays a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx, nn
from torch.fx.node import Argument

from fxquant.capture.canonical.lift_bag import ATEN_BAGS, read_bag
from fxquant.capture.canonical.same_stock import follows_mode, has_settings, is_norm, owns, same_stock, stock_class
from fxquant.capture.canonical.stock import RECIPES, TENSORS, Stock, Tensors, build, read_call, weight_of
from fxquant.graph.nodes import TensorInfo, scope_path
from fxquant.graph.paths import class_name, free_path, get_attr, set_submodule
from fxquant.graph.region import Region, origin_of, set_origin
from fxquant.ops.table import OPS, Op, OpTable

_CONSTANTS = ("_tensor_constant", "lifted_tensor")  # names that a capture gives
_ADDMM = (torch.addmm, torch.ops.aten.addmm.default)


def lift(region: Region, ops: OpTable = OPS) -> None:
    """Lift every call that can be lifted."""
    lifter = _Lifter(region, ops)
    for node in list(region.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        op = ops.of(node.target)
        if node.target in _ADDMM:
            lifter.lift_addmm(node)
        elif node.target in ATEN_BAGS or (op is not None and op.pools):
            lifter.lift_bag(node)
        elif op is not None and op.random:
            lifter.lift_dropout(node)
        elif op is not None and op.kind in RECIPES:
            lifter.lift(node, op)
    lifter.finish()


class _Lifter:
    def __init__(self, region: Region, ops: OpTable) -> None:
        self.region, self.ops = region, ops
        self.placed: dict[str, tuple[Stock, Tensors]] = {}  # path -> what was put there
        self.moved: dict[str, str] = {}  # old path of a parameter -> new one
        self.renamed: dict[str, tuple[str, bool]] = {}  # the same for state dicts: (new path, transposed)
        self.classes: dict[str, type[nn.Module]] = {}  # of modules that a stock one was put in the place of
        self.shared: set[str] = set()  # paths of bare parameters that a new module holds as well
        self.made: dict[int, tuple[torch.Tensor, nn.Parameter]] = {}  # by the id of a buffer or plain tensor
        self.originals = dict(region.named_modules(remove_duplicate=False))

    def lift(self, node: fx.Node, op: Op) -> None:
        call = read_call(node)
        if call is None:
            return
        owned = {name: call.get(name) for name in TENSORS if name in call}
        tensors = self._tensors(owned)
        names = tuple(op.params[at] for at in op.operands) or ("input",)
        sources = [value for name in names if isinstance(value := call.get(name), fx.Node)]
        if tensors is None or len(sources) < len(names):
            return
        if any(isinstance(v, fx.Node) for k, v in call.items() if k not in (*names, "momentum", *TENSORS)):
            return  # a setting that is only known at run time
        info = sources[0].meta.get("tensor")
        if not op.is_norm and tensors.get("weight") is None:
            return
        stock = RECIPES[op.kind](call, tensors, len(info.shape) if isinstance(info, TensorInfo) else None)
        if stock is not None:
            self._place(node, sources, stock, tensors, op.kind)

    def lift_addmm(self, node: fx.Node) -> None:
        """addmm(bias, x, weight) with the weight as [in, out], as transformers' Conv1D spells a linear layer."""
        call = read_call(node) or {}
        bias, source, weight = (call.get(name) for name in ("input", "mat1", "mat2"))
        tensors = self._tensors({"weight": weight, "bias": bias})
        if tensors is None or tensors["weight"] is None or not isinstance(source, fx.Node):
            return
        scaled = call.get("beta", 1) != 1 or call.get("alpha", 1) != 1
        if scaled or tensors["bias"] is None or tensors["bias"].dim() != 1 or self._uses(tensors["weight"]) != 1:
            return
        inputs, outputs = tensors["weight"].shape
        settings = {"in_features": inputs, "out_features": outputs, "bias": True}
        stock = Stock(cls=nn.Linear, settings=settings, tensors={"weight": weight, "bias": bias}, transposed=True)
        self._place(node, [source], stock, tensors, "linear")

    def lift_bag(self, node: fx.Node) -> None:
        bag = read_bag(node)
        tensors = None if bag is None else self._tensors({"weight": bag.weight})
        if bag is None or tensors is None:
            return
        path = self._find_path(node, bag.stock(weight_of(tensors).shape), tensors, "embedding_bag")
        if path is not None:
            for result in bag.results:
                self._call(result, bag.args, path)
            if node not in bag.results:
                node.graph.erase_node(node)

    def lift_dropout(self, node: fx.Node) -> None:
        call = read_call(node)
        if call is None or not isinstance(call["input"], fx.Node) or not isinstance(call["p"], (int, float)):
            return
        path = scope_path(node)
        scope = self.originals.get(path)
        if scope is None or scope.training is not bool(call["training"]):
            return  # dropout that does not follow the module's mode, such as Monte Carlo dropout
        name = str(getattr(node.target, "__name__", node.target)).removesuffix(".default").rstrip("_")
        info = call["input"].meta.get("tensor")
        dims = {"dropout1d": 1, "dropout2d": 2, "dropout3d": 3}.get(name)
        if name.startswith("feature_dropout"):
            ndim = len(info.shape) if isinstance(info, TensorInfo) else 4
            dims = {3: 1, 4: 2, 5: 3}.get(ndim, 2)
        cls = getattr(nn, f"Dropout{dims}d") if dims else nn.Dropout
        stands = isinstance(scope, nn.modules.dropout._DropoutNd) and "forward" not in scope.__dict__
        if not (stands and scope.p == call["p"]):
            path = free_path(self.region, f"{path}.dropout" if path else "dropout")
            module = cls(call["p"])
            module.training = scope.training
            set_submodule(self.region, path, module)
        self._call(node, (call["input"],), path)

    def _tensors(self, owned: Mapping[str, object]) -> Tensors | None:
        """Return the tensors behind get_attr nodes; None if one is computed, or a weight is not of floats.

        A weight that is a buffer or a plain tensor counts as a parameter that does not train.
        """
        found: dict[str, torch.Tensor | None] = {}
        for name, node in owned.items():
            if node is None:
                found[name] = None
                continue
            if not isinstance(node, fx.Node) or node.op != "get_attr" or node.meta.get("mutated"):
                return None
            value = get_attr(self.region, self.moved.get(str(node.target), str(node.target)))
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return None
            found[name] = self._parameter(value) if name in ("weight", "bias") else value
        return found

    def _parameter(self, tensor: torch.Tensor) -> nn.Parameter:
        if isinstance(tensor, nn.Parameter):
            return tensor
        made = self.made.setdefault(id(tensor), (tensor, nn.Parameter(tensor.detach(), requires_grad=False)))
        return made[1]

    def _uses(self, tensor: torch.Tensor) -> int:
        attributes = (n for n in self.region.graph.nodes if n.op == "get_attr")
        found = ((n, get_attr(self.region, str(n.target))) for n in attributes)
        calls = sum(
            len(n.users) for n, t in found if t is tensor or (id(t) in self.made and self.made[id(t)][1] is tensor)
        )
        modules = {id(m) for m in self.region.modules() for t in m._parameters.values() if t is tensor}
        return max(calls, len(modules))

    def _place(self, node: fx.Node, sources: Sequence[fx.Node], stock: Stock, tensors: Tensors, kind: str) -> None:
        path = self._find_path(node, stock, tensors, kind)
        if path is not None:
            self._call(node, tuple(sources), path)

    def _find_path(self, node: fx.Node, stock: Stock, tensors: Tensors, kind: str) -> str | None:
        weight = stock.tensors.get("weight")
        owner = str(weight.target).rpartition(".")[0] if weight is not None else None
        for path in (scope_path(node), owner):
            module = self.originals.get(path or "")
            if not path or module is None:
                continue
            if isinstance(module, stock.cls) or (is_norm(module) and is_norm(stock.cls)):
                if owns(module, tensors):
                    return self._put(path, stock, module, tensors)
            elif stock.certain and path == owner and self._owns_nothing_else(module, tensors):
                return self._put(path, stock, module, tensors)
        if not stock.certain or all(tensor is None for tensor in tensors.values()):
            return None  # no state, and not the code of a stock module: a plain function
        if stock.training is not None and not follows_mode(stock, self.originals[scope_path(node)], tensors):
            return None
        if weight is not None and self._is_bare(owner or "", str(weight.target)):
            old = {name: str(n.target) for name, n in stock.tensors.items() if n is not None}
            return self._put_at_parameter(str(weight.target), stock, tensors, old)
        if weight is not None and str(weight.target) in self.moved:
            return self._put(self.moved[str(weight.target)].rpartition(".")[0], stock, None, tensors)
        scope = scope_path(node)
        return self._put(f"{scope}.{kind}" if scope else kind, stock, None, tensors)

    def _owns_nothing_else(self, module: nn.Module, tensors: Tensors) -> bool:
        if self.ops.of(type(module)) is not None:
            return False  # another op's own weight
        state = {**module._parameters, **module._buffers}
        return set(state) <= {*tensors, "num_batches_tracked"} and owns(module, tensors)

    def _is_bare(self, owner: str, path: str) -> bool:
        """Tell whether a parameter belongs to a module of the user's, which can hold a module in its place."""
        module = self.originals.get(owner)
        if path.rpartition(".")[2].startswith(_CONSTANTS):  # made in forward: it has no name of its own
            return False
        return path not in self.moved and module is not None and self.ops.of(type(module)) is None

    def _put_at_parameter(self, path: str, stock: Stock, tensors: Tensors, old: dict[str, str]) -> str | None:
        for previous in old.values():  # plain tensors, which would hide a module of that name
            parent, _, attribute = previous.rpartition(".")
            self.region.get_submodule(parent).__dict__.pop(attribute, None)
        set_submodule(self.region, path, self._build(stock, None, tensors))
        self.placed[path] = (stock, tensors)
        self._set_mode(path)
        self._note_names(path, stock)
        for name, previous in old.items():
            parent, _, attribute = previous.rpartition(".")
            module = self.region.get_submodule(parent)
            if self.ops.of(type(module)) is None and (attribute in module._parameters or attribute in module._buffers):
                delattr(module, attribute)
            if previous not in self.moved and self.ops.of(type(module)) is None:
                self.moved[previous] = f"{path}.{name}"
        return path

    def _set_mode(self, path: str) -> None:
        parent = self.originals.get(path.rpartition(".")[0], self.region)
        self.region.get_submodule(path).training = parent.training

    def _put(self, path: str, stock: Stock, source: nn.Module | None, tensors: Tensors) -> str | None:
        """Make sure that a stock module for this call is at `path`, or at a free path next to it."""
        if stock.training is not None and source is not None and not follows_mode(stock, source, tensors):
            return None
        if source is not None and isinstance(source, stock_class(stock, source, self.ops)):
            stock = replace(stock, cls=stock_class(stock, source, self.ops))
        for candidate, (other, theirs) in self.placed.items():
            if (candidate == path or candidate.startswith(f"{path}_")) and same_stock(stock, other, tensors, theirs):
                return candidate
        if path in self.placed or source is None:
            path, source = free_path(self.region, path), None if path in self.placed else source
        kept = not stock.transposed and source is not None and "forward" not in source.__dict__
        if source is not None and kept and type(source) is stock.cls and has_settings(source, stock):
            module = source
        else:
            module = self._build(stock, source, tensors)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            hooks.clear()  # their ops are in the graph already
        if module is not source:
            for place in [p for p, m in self.originals.items() if m is source and source is not None] or [path]:
                set_submodule(self.region, place, module)
                if source is not None and type(source) is not type(module):
                    self.classes[place] = type(source)
        if source is None:
            self._set_mode(path)
            self.shared.update(str(n.target) for n in stock.tensors.values() if n is not None)
        self.placed[path] = (stock, tensors)
        if source is None or stock.transposed:
            self._note_names(path, stock)
        return path

    def _note_names(self, path: str, stock: Stock) -> None:
        for name, node in stock.tensors.items():
            if node is not None:
                self.renamed.setdefault(str(node.target), (f"{path}.{name}", stock.transposed and name == "weight"))

    def _build(self, stock: Stock, source: nn.Module | None, tensors: Tensors) -> nn.Module:
        if stock.transposed:
            before = weight_of(tensors)
            weight = nn.Parameter(before.detach().t(), requires_grad=before.requires_grad)
            tensors = {**tensors, "weight": weight}
        return build(stock, source, tensors)

    def _call(self, node: fx.Node, args: tuple[Argument, ...], path: str) -> None:
        graph = node.graph
        with graph.inserting_before(node):
            call = graph.call_module(path, args)
        call.meta = dict(node.meta)
        scope = call.meta.get("scope", ())
        if not scope or scope[-1][0] != path:
            call.meta["scope"] = (*scope, (path, class_name(type(self.region.get_submodule(path)))))
        node.replace_all_uses_with(call)
        graph.erase_node(node)

    def finish(self) -> None:
        """Point what still reads a moved parameter to its new place; batch norms count their batches themselves."""
        for node in list(self.region.graph.nodes):
            if node.op == "get_attr" and not node.users:
                self.region.graph.erase_node(node)
            elif node.op == "get_attr" and str(node.target) in self.moved:
                node.target = self.moved[str(node.target)]
            elif node.op == "get_attr":
                path, _, name = str(node.target).rpartition(".")
                counters = [*node.users] if name == "num_batches_tracked" and path in self.placed else []
                for user in reversed(counters):
                    if not user.users:
                        self.region.graph.erase_node(user)
        self._drop_unread()
        moved = {old: place for old, place in self.renamed.items() if place[1] or self._is_gone(old)}
        set_origin(self.region, replace(origin_of(self.region), moved=moved, classes=self.classes))

    def _is_gone(self, path: str) -> bool:
        try:
            return not isinstance(get_attr(self.region, path), torch.Tensor)
        except AttributeError:
            return True

    def _drop_unread(self) -> None:
        """Bare parameters that only lifted calls have read; left in place they would be a second key for a tensor."""
        read = {str(node.target) for node in self.region.graph.nodes if node.op == "get_attr"}
        for path in self.shared - read - set(self.moved):
            parent, _, name = path.rpartition(".")
            module = self.region.get_submodule(parent)
            if self.ops.of(type(module)) is None and parent not in self.placed:
                delattr(module, name)
