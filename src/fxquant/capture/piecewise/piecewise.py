"""A model that does not trace as a whole: its largest traceable submodules become regions, at their own paths.

Comes in: the user's model and example inputs. Goes out: a clone of its module tree, of the user's own classes, whose
Python runs as written; regions stand where submodules were. What stays in float is written down with the reason
(`graph.tree.Left`). A module that is called from several places is one region, with one range over all its calls.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

from torch import Tensor, nn

from fxquant.capture.piecewise.calls import Call, Calls, Use, named_tensors, own_tensors
from fxquant.capture.piecewise.functional import Spelling, is_weighted_use, put_weights, spell, weight_region
from fxquant.capture.piecewise.opaque import Traced, trace_most
from fxquant.capture.piecewise.put_good import Piece, put_good
from fxquant.capture.piecewise.stock_region import is_weighted_leaf, leaf_region
from fxquant.capture.reasons import Cause
from fxquant.capture.request import Request
from fxquant.capture.run_untraced import difference, evaluating
from fxquant.capture.source_lines import reason
from fxquant.errors import CaptureError, Reason
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.paths import is_within, join_path
from fxquant.graph.region import Region, origin_of, set_origin
from fxquant.graph.torch_compat import is_scripted
from fxquant.graph.tree import Left, Tree, place_regions, set_tree, weighted_parts

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def piecewise(request: Request, whole: Traced | CaptureError | None = None) -> nn.Module:
    """Put regions into a model; the root may be one too, if only some of its submodules do not trace.

    `whole` is what earlier rungs found of the root: a region with calls in it, or why there is none.
    """
    tree = request.clone()
    pieces = _Pieces(request, tree, request.recording.watched(tree), whole)
    pieces.visit("")
    pieces.verify()
    return pieces.finish()


class _Pieces:
    def __init__(
        self, request: Request, tree: nn.Module, recording: Calls, whole: Traced | CaptureError | None
    ) -> None:
        self.request, self.tree, self.recording, self.whole = request, tree, recording, whole
        self.left: list[Left] = []
        self.replaced: dict[str, Piece] = {}  # by path
        self.orders: Counter[tuple[str, str]] = Counter()
        self.repeats: dict[bool, bool] = {}  # by mode: whether two runs of the model agree

    def visit(self, path: str) -> None:
        """Make the module at a path a region, or look into it."""
        module = self.tree.get_submodule(path)
        if isinstance(module, Region) or not (weighted_parts(module, self.request.ops) or self._functional(path, True)):
            return
        if path in self.request.leaf_names or isinstance(module, tuple(self.request.leaf_classes)):
            self._leave(path, module, Cause.CONFIGURED.because())
        elif is_scripted(module):
            self._leave(path, module, Cause.SCRIPTED.because())
        elif is_weighted_leaf(module, self.request.ops):
            self._visit_leaf(path, module)
        elif type(module).__module__.startswith("torch.nn") and not isinstance(module, _CONTAINERS):
            self._leave(path, module, Cause.NO_FORM.because())
        else:
            self._visit_code(path, module)

    def _visit_leaf(self, path: str, module: nn.Module) -> None:
        calls = self.recording.calls_of(path)
        readers = self._readers(path)
        if not calls and readers and not self._is_called_elsewhere(path):
            if not self._visit_functional(path):
                self._leave(path, module, Cause.ONLY_READ.because(reader=readers[0]))
            return
        if not isinstance(module.weight, Tensor) or not module.weight.dtype.is_floating_point:
            return
        try:
            region = leaf_region(module, calls, self.request.ops)
        except CaptureError as error:
            self._leave(path, module, error.why)
            return
        op = self.request.ops.of(type(module))
        key = (path.rpartition(".")[0], op.kind if op is not None else "")
        set_origin(region, dataclasses.replace(origin_of(region), order=self.orders[key]))
        self.orders[key] += 1
        self._put(path, module, region)
        outside = [use for use in self.recording.uses.get(join_path(path, "weight"), ()) if not use.inside]
        weighted = [use for use in outside if is_weighted_use(use, module.weight, self.request.ops)]
        self._note_others(path, module, module.weight, weighted)
        if not calls:
            self._note(path, module, Cause.NOT_REACHED.because(), reached=False)

    def _is_called_elsewhere(self, path: str) -> bool:
        """Tell whether another module holds the same weight and is called: what is read may be that module's."""
        owners = self.recording.owners.get(join_path(path, "weight"), ())
        return any(owner != path and self.recording.calls_of(owner) for owner in owners)

    def _visit_code(self, path: str, module: nn.Module) -> None:
        calls = self.recording.calls_of(path)
        if not calls:  # a container, or the other arm of a branch: its parts may be called one by one
            self._descend(path)
            return
        try:
            self._refuse(path)
            traced = self._trace(path, module, calls)
        except CaptureError as error:
            self._note(path, module, error.why, error.where)
            self._descend(path)
            return
        self._put(path, module, traced.region)
        for inner, refusal in traced.opaque.items():
            at = join_path(path, inner)
            self._note(at, traced.region.get_submodule(inner), refusal.why, refusal.where)
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
            theirs = [use for use in uses if use.user == owner or not use.owned]  # not those of their own attributes
            weighted = [use for use in theirs if is_weighted_use(use, parameters[name], self.request.ops)]
            # a stock module that is called is a region itself
            stock = self.request.ops.of(type(self.tree.get_submodule(owner))) is not None
            bare = not stock or not self.recording.calls_of(owner)
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
            made = weight_region(uses[0], parameter, self.request.ops)
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
            self._note(path, module, Cause.ALSO_PASSED.because(function=spelling.name), weighted=1)

    def _trace(self, path: str, module: nn.Module, calls: list[Call]) -> Traced:
        """Make a region of a module, and compare it with all calls that the example run saw."""
        if module is not self.tree:
            traced = trace_most(self.request.of_part(path, module, calls[0]), root=False)
        elif isinstance(self.whole, CaptureError):
            raise self.whole
        else:
            traced = self.whole or trace_most(self.request, root=True)
        run = self.request.recording.run
        for call in calls[1:]:
            try:
                theirs = run(clone_tree(module), call.args, call.kwargs)
                found = difference(run(traced.region, call.args, call.kwargs), theirs)
            except Exception as error:
                raise _refusal(Cause.OTHER_CALLS.because(found=reason(error))) from error
            if found:
                raise _refusal(Cause.OTHER_CALLS.because(found=found))
        return traced

    def _refuse(self, path: str) -> None:
        """What a graph cannot hold: state in plain attributes, weights that code outside reads."""
        changes = ((at, name) for at, names in self.recording.stateful.items() for name in names)
        stateful = [name for at, name in changes if is_within(at, path) and not self._in_leaf(at, path)]
        if stateful:
            raise _refusal(Cause.STATE.because(name=stateful[0]))
        readers = self._readers(path)
        if readers:
            raise _refusal(Cause.WEIGHTS_OUTSIDE.because(reader=readers[0]))

    def _in_leaf(self, path: str, root: str) -> bool:
        """Tell whether a path is in a module below `root` that the custom config makes a call, state and all."""
        steps = path.split(".")
        above = [".".join(steps[: count + 1]) for count in range(len(steps))]
        inner = [at for at in above if at != root and is_within(at, root)]
        classes = tuple(self.request.leaf_classes)
        return any(at in self.request.leaf_names or isinstance(self.tree.get_submodule(at), classes) for at in inner)

    def _readers(self, path: str) -> list[str]:
        """Modules outside a path whose code uses a parameter inside it."""
        found = []
        parameters = {name for name, _ in self.tree.named_parameters()}
        for name, uses in self.recording.uses.items():
            if is_within(name, path) and name in parameters:
                found += [use.user for use in uses if not use.inside and not is_within(use.user, path)]
        return [f"{type(self.tree.get_submodule(user)).__name__} {user!r}" for user in found]

    def _put(self, path: str, module: nn.Module, region: Region) -> None:
        set_origin(region, dataclasses.replace(origin_of(region), path=path))
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

    def _leave(self, path: str, module: nn.Module, why: Reason) -> None:
        """Leave a module in float, with all that is in it."""
        self._note(path, module, why)
        inside = Reason(f"inside {path!r}: {why.text}", why.hint)
        for at in weighted_parts(module, self.request.ops):
            if at:
                self._note(join_path(path, at), module.get_submodule(at), inside)

    def _note(
        self,
        path: str,
        module: nn.Module,
        why: Reason,
        where: str = "",
        reached: bool = True,
        weighted: int | None = None,
    ) -> None:
        own = weighted_parts(module, self.request.ops).get("", 0) if reached else 0
        entry = Left(
            path=path,
            module=type(module).__name__,
            reason=why.text,
            where=where,
            hint=why.hint,
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
        why = Reason(f"as a region it changes the outputs of the model: {difference}")
        del self.replaced[path]
        if is_weighted_leaf(module, self.request.ops):
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
        args, kwargs = self.request.args, self.request.kwargs
        for training, theirs in self.recording.outputs.items():
            try:
                with evaluating(self.tree, not training):
                    found = difference(self.request.recording.run(self.tree, args, kwargs), theirs)
            except Exception as error:
                found = reason(error)
            if found and self._repeats(training, theirs):
                return found
        return None

    def _repeats(self, training: bool, theirs: object) -> bool:
        """Tell whether the model itself computes the same again; code may draw numbers that no seed of ours reaches."""
        if training not in self.repeats:
            tree = self.request.clone()
            with evaluating(tree, not training):
                again = self.request.recording.run(tree, self.request.args, self.request.kwargs)
            self.repeats[training] = difference(again, theirs) is None
        return self.repeats[training]

    def finish(self) -> nn.Module:
        names, count = self.request.input_names, self.request.num_inputs
        set_tree(self.tree, Tree(method="piecewise", num_inputs=count, input_names=names, left=tuple(self.left)))
        place_regions(self.tree)
        return self.tree


def _refusal(why: Reason) -> CaptureError:
    return CaptureError(why.text, why=why)
