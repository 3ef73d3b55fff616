"""A model that does not trace as a whole: its largest traceable submodules become regions, at their own paths.

Comes in: the user's model and example inputs. Goes out: a clone of its module tree, of the user's own classes, whose
Python runs as written; regions stand where submodules were. What stays in float is written down with the reason
(`core.tree.Left`). A module that is called from several places is one region, with one range over all its calls.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

from torch import Tensor, nn

from fxquant.capture.attempt import Job, symbolic, symbolic_root
from fxquant.capture.compare import difference, evaluating, run
from fxquant.capture.functional import Spelling, is_weighted_use, put_weights, spell, weight_region
from fxquant.capture.hints import hint
from fxquant.capture.inputs import bind
from fxquant.capture.leaf import is_weighted_leaf, leaf_region
from fxquant.capture.opaque import FEW, HALF, with_leaves
from fxquant.capture.origin import reason
from fxquant.capture.pieces import Piece, put_good
from fxquant.capture.record import Call, Recording, Use, named_tensors, own_tensors, record_calls
from fxquant.core.graph import Region, clone_tree, place_regions
from fxquant.core.paths import is_within, join_path
from fxquant.core.tree import Left, Tree, set_tree, weighted_parts
from fxquant.errors import CaptureError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def piecewise(job: Job, whole: CaptureError | None = None) -> nn.Module:
    """The user's model with regions inside; the root may be one too, if only some of its submodules do not trace.

    `whole` says why the root is not to be one.
    """
    tree = job.clone()
    pieces = _Pieces(job, tree, record_calls(tree, *job.call()), whole)
    pieces.visit("")
    pieces.verify()
    return pieces.finish()


class _Pieces:
    def __init__(self, job: Job, tree: nn.Module, recording: Recording, whole: CaptureError | None) -> None:
        self.job, self.tree, self.recording, self.whole = job, tree, recording, whole
        self.left: list[Left] = []
        self.replaced: dict[str, Piece] = {}  # by path
        self.orders: Counter[tuple[str, str]] = Counter()

    def visit(self, path: str) -> None:
        """Make the module at a path a region, or look into it."""
        module = self.tree.get_submodule(path)
        if isinstance(module, Region) or not (weighted_parts(module, self.job.ops) or self._functional(path, True)):
            return
        if path in self.job.leaf_names or isinstance(module, tuple(self.job.leaf_classes)):
            self._leave(path, module, "the custom config says that it is non-traceable")
        elif is_weighted_leaf(module, self.job.ops):
            self._visit_leaf(path, module)
        elif type(module).__module__.startswith("torch.nn") and not isinstance(module, _CONTAINERS):
            self._leave(path, module, "stock module without an int8 form")
        else:
            self._visit_code(path, module)

    def _visit_leaf(self, path: str, module: nn.Module) -> None:
        calls = self.recording.calls_of(path)
        readers = self._readers(path)
        if not calls and readers:
            if not self._visit_functional(path):
                self._leave(path, module, f"its weight is used by {readers[0]}, which does not call it")
            return
        if not isinstance(module.weight, Tensor) or not module.weight.dtype.is_floating_point:
            return
        try:
            region = leaf_region(module, calls, self.job.ops)
        except CaptureError as error:
            self._leave(path, module, error.reason)
            return
        op = self.job.ops.of(type(module))
        key = (path.rpartition(".")[0], op.kind if op is not None else "")
        region._region.order = self.orders[key]
        self.orders[key] += 1
        self._put(path, module, region)
        outside = [use for use in self.recording.uses.get(join_path(path, "weight"), ()) if not use.inside]
        weighted = [use for use in outside if is_weighted_use(use, module.weight, self.job.ops)]
        self._note_others(path, module, module.weight, weighted)
        if not calls:
            self._note(path, module, "not reached by the example inputs: int8 if calibration reaches it", reached=False)

    def _visit_code(self, path: str, module: nn.Module) -> None:
        calls = self.recording.calls_of(path)
        if not calls:  # a container, or the other arm of a branch: its parts may be called one by one
            self._descend(path)
            return
        try:
            self._refuse(path)
            if not path and self.whole is not None:
                raise self.whole
            region, opaque = self._region(path, module, calls)
        except CaptureError as error:
            self._note(path, module, error.reason, error.where)
            self._descend(path)
            return
        self._put(path, module, region)
        for inner, why in opaque.items():
            at = join_path(path, inner)
            self._note(at, region.get_submodule(inner), why.reason, why.where)
            self._descend(at)

    def _descend(self, path: str) -> None:
        self._visit_functional(path)
        for name, child in list(self.tree.get_submodule(path)._modules.items()):
            if child is not None and not isinstance(child, Region):
                self.visit(join_path(path, name))

    def _functional(self, path: str, inside: bool = False) -> dict[str, list[Use]]:
        """Bare parameters that weighted functions are called on, by name; with `inside` those of submodules, too."""
        found = {}
        parameters = {n: t for n, t in named_tensors(self.tree) if t.is_floating_point()}
        for name, uses in self.recording.uses.items():
            owner, _, own = name.rpartition(".")
            if not (is_within(owner, path) if inside else owner == path) or name not in parameters:
                continue
            weighted = [use for use in uses if is_weighted_use(use, parameters[name], self.job.ops)]
            # a stock module that is called is a region itself
            bare = self.job.ops.of(type(self.tree.get_submodule(owner))) is None or not self.recording.calls_of(owner)
            if weighted and bare:
                found[name if inside else own] = weighted
        return found

    def _visit_functional(self, path: str) -> bool:
        """Regions in the place of the parameters of a module that code passes to weighted functions itself."""
        module = self.tree.get_submodule(path)
        if isinstance(module, Region):
            return False
        sites = {}
        functional = self._functional(path)
        for name, uses in functional.items():
            parameter = dict(own_tensors(module))[name]
            made = weight_region(uses[0], parameter, self.job.ops)
            if made is not None:
                sites[name] = made
        if not sites:
            return False
        for name, (_, spelling) in sites.items():
            parameter = dict(own_tensors(module))[name]
            self._note_others(join_path(path, name), module, parameter, functional[name], spelling)
        put, undo = put_weights(module, sites)
        self._add(Piece(path=path, module=module, put=put, undo=undo, names=tuple(sites)))
        return True

    def _note_others(
        self, path: str, module: nn.Module, parameter: object, uses: list[Use], known: Spelling | None = None
    ) -> None:
        """Calls of weighted functions on a parameter that no region stands for."""
        spellings = [spell(use.function, use.args, use.kwargs, parameter)[0] for use in uses]
        for spelling in dict.fromkeys(spelling for spelling in spellings if spelling != known):
            self._note(path, module, f"its weight is also passed to {spelling.name}, in float", weighted=1)

    def _region(self, path: str, module: nn.Module, calls: list[Call]) -> tuple[Region, dict[str, CaptureError]]:
        first = calls[0]
        inside = [name for name in self.job.leaf_names if name != path and is_within(name, path)]
        job = dataclasses.replace(
            self.job,
            model=module,
            slots=bind(module, first.args, first.kwargs),
            leaf_names=[name.removeprefix(f"{path}.") for name in inside],
            share_tensors=True,
        )
        opaque: dict[str, CaptureError] = {}
        root = module is self.tree
        try:
            region = (symbolic_root if root else symbolic)(job)
        except CaptureError as error:
            region, opaque = with_leaves(job, error, FEW if root else HALF, root=root)
        for call in calls[1:]:
            try:
                found = difference(run(region, call.args, call.kwargs), run(clone_tree(module), call.args, call.kwargs))
            except Exception as error:
                raise CaptureError(f"one graph does not cover all of its calls: {reason(error)}") from error
            if found:
                raise CaptureError(f"one graph does not cover all of its calls: {found}")
        return region, opaque

    def _refuse(self, path: str) -> None:
        """What a graph cannot hold: state in plain attributes, weights that code outside reads."""
        changes = ((at, name) for at, names in self.recording.stateful.items() for name in names)
        stateful = [name for at, name in changes if is_within(at, path) and not self._in_leaf(at, path)]
        if stateful:
            raise CaptureError(f"a call changes its attribute {stateful[0]!r}, which a graph cannot hold")
        readers = self._readers(path)
        if readers:
            raise CaptureError(f"its weights are used outside of it, by {readers[0]}")

    def _in_leaf(self, path: str, root: str) -> bool:
        """Whether a path is in a module below `root` that the custom config makes a call, state and all."""
        steps = path.split(".")
        above = [".".join(steps[: count + 1]) for count in range(len(steps))]
        inner = [at for at in above if at != root and is_within(at, root)]
        classes = tuple(self.job.leaf_classes)
        return any(at in self.job.leaf_names or isinstance(self.tree.get_submodule(at), classes) for at in inner)

    def _readers(self, path: str) -> list[str]:
        """Modules outside a path whose code uses a parameter inside it."""
        found = []
        parameters = {name for name, _ in self.tree.named_parameters()}
        for name, uses in self.recording.uses.items():
            if is_within(name, path) and name in parameters:
                found += [use.user for use in uses if not use.inside and not is_within(use.user, path)]
        return [f"{type(self.tree.get_submodule(user)).__name__} {user!r}" for user in found]

    def _put(self, path: str, module: nn.Module, region: Region) -> None:
        region._region.path = path
        put, undo = partial(self._swap, module, region), partial(self._swap, region, module)
        self._add(Piece(path=path, module=module, put=put, undo=undo))

    def _add(self, piece: Piece) -> None:
        self.replaced[piece.path] = piece
        piece.put()

    def _swap(self, old: nn.Module, new: nn.Module) -> None:
        if old is self.tree:
            self.tree = new
            return
        for parent in list(self.tree.modules()):
            for name, child in parent._modules.items():
                if child is old:
                    parent._modules[name] = new

    def _leave(self, path: str, module: nn.Module, why: str) -> None:
        """Leave a module in float, with all that is in it."""
        self._note(path, module, why)
        for at in weighted_parts(module, self.job.ops):
            if at:
                self._note(join_path(path, at), module.get_submodule(at), f"inside {path!r}: {why}")

    def _note(
        self,
        path: str,
        module: nn.Module,
        why: str,
        where: str = "",
        reached: bool = True,
        weighted: int | None = None,
    ) -> None:
        own = weighted_parts(module, self.job.ops).get("", 0) if reached else 0
        entry = Left(
            path=path,
            module=type(module).__name__,
            reason=why,
            where=where,
            hint=hint(why),
            weighted=own if weighted is None else weighted,
            reached=reached,
        )
        self.left.append(entry)

    def verify(self) -> None:
        """Compare with the model itself. Regions that make a difference go back to float."""
        if self._difference() is not None:
            self._keep_good(list(self.replaced.values()))

    def _keep_good(self, pieces: list[Piece]) -> None:
        for piece in reversed(pieces):
            piece.undo()
        put_good(pieces, self._difference, self._look_inside)

    def _look_inside(self, piece: Piece, difference: str) -> None:
        """Smaller regions in the place of one that does not work in the code around it."""
        path, module = piece.path, piece.module
        why = f"as a region it changes the outputs of the model: {difference}"
        del self.replaced[path]
        if is_weighted_leaf(module, self.job.ops):
            self._leave(path, module, why)
        elif piece.names:
            for name in piece.names:
                self._note(join_path(path, name), module, why, weighted=1)
        else:
            before = set(self.replaced)
            self._note(path, module, why)
            self._descend(path)
            self._keep_good([inner for at, inner in self.replaced.items() if at not in before])

    def _difference(self) -> str | None:
        args, kwargs = self.job.call()
        for training, theirs in self.recording.outputs.items():
            try:
                with evaluating(self.tree, not training):
                    found = difference(run(self.tree, args, kwargs), theirs)
            except Exception as error:
                found = reason(error)
            if found:
                return found
        return None

    def finish(self) -> nn.Module:
        job = self.job
        tree = Tree(method="piecewise", num_inputs=job.num_inputs, input_names=job.input_names, left=tuple(self.left))
        set_tree(self.tree, tree)
        place_regions(self.tree)
        return self.tree
