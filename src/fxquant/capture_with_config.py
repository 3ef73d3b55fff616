"""From the user's model and its custom config to a captured model with regions: all that comes before the passes.

standalone modules        captured by themselves, with rules of their own
custom modules            the user's observed classes, as leaves
LSTM, attention, ...      their quantizable forms (fxquant.modules), where a rule asks for quantization
wrapped bodies            the modules that are called in them, captured by themselves
the rest                  captured around these
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fxquant.capture import Method, Sizes, capture
from fxquant.capture.canonical.bake import bake_parametrizations
from fxquant.capture.piecewise.calls import Call
from fxquant.capture.piecewise.wrapped_bodies import (
    CalledModules,
    FirstCall,
    capture_bodies,
    replace_module,
    watch_calls,
)
from fxquant.capture.recording import Reference
from fxquant.capture.run_untraced import difference
from fxquant.capture.symbolic.wrap import is_wrapped
from fxquant.config.custom_config import PrepareCustomConfig, Standalone
from fxquant.config.forms import closest
from fxquant.config.rules import Rules, Site
from fxquant.errors import ConfigError
from fxquant.graph.clone_tree import clone_tree
from fxquant.graph.context import Context
from fxquant.graph.notes import LEFT_ALONE
from fxquant.graph.one_at_a_time import CAPTURING
from fxquant.graph.paths import class_name, is_within, join_path
from fxquant.graph.region import Region, regions, stage_of, user_class
from fxquant.graph.region_parts import Stage
from fxquant.graph.tensor_users import mark_read
from fxquant.graph.tree import place_regions
from fxquant.modules.substitute import FORMS, substitute
from fxquant.passes.custom_modules import observe_custom, quant_type_of, why_unused


def capture_with_config(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    context: Context,
    *,
    method: Method,
    sizes: Sizes = "example",
    concrete: Mapping[str, object] | None = None,
) -> tuple[nn.Module, tuple[Context, ...]]:
    """Capture a model (which is not changed) under a custom config.

    With the captured model come its contexts, from the outermost on: that of the whole, and those of the standalone
    modules.
    """
    whole = dataclasses.replace(context, model=model)
    job = _Capture(model=model, context=whole, method=method, sizes=sizes, concrete=dict(concrete or {}))
    with CAPTURING:
        captured = job.run(args, dict(kwargs))
    place_regions(captured)
    mark_read(captured)
    return captured, (whole, *job.inner)


def open_regions(model: nn.Module, contexts: Iterable[Context]) -> dict[int, Context]:
    """Return the regions that are still to be prepared, by id, with the innermost context around each."""
    found = {}
    for path, region in regions(model):
        if stage_of(region) in (Stage.CAPTURED, Stage.FUSED):
            around = (context for context in contexts if is_within(path, context.path))
            found[id(region)] = max(around, key=lambda context: len(context.path))
    return found


@dataclass(kw_only=True, slots=True)
class _Capture:
    """The capture of `model`, the part that `context` is about. `outer` is what is around it."""

    model: nn.Module
    context: Context
    method: Method
    sizes: Sizes
    concrete: dict[str, Any] = field(default_factory=dict)
    outer: tuple[tuple[str, str], ...] = ()
    inner: list[Context] = field(default_factory=list)
    shut: set[nn.Module] = field(default_factory=set)  # nothing in these is quantized
    named: set[nn.Module] = field(default_factory=set)  # the standalone modules that are named
    leaves: list[type[nn.Module]] = field(default_factory=list)
    stock: bool = False  # stock modules stay what they are
    opaque: list[str] = field(default_factory=list)  # paths of standalone modules that are no single region

    @property
    def rules(self) -> Rules:
        assert self.context.rules is not None
        return self.context.rules

    @property
    def custom(self) -> PrepareCustomConfig:
        return self.context.custom

    def run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> nn.Module:
        self._check_names()
        tree = bake_parametrizations(clone_tree(self.model, share_objects=False))
        self._shut(tree)
        self.named = {m for path, m in tree.named_modules() if path in self.custom.standalone_module_names}
        self.leaves = list(self.custom.non_traceable_module_classes)
        watch = watch_calls(tree, args, {**kwargs, **self.concrete}, self._is_wanted)
        self._standalone(tree, watch.seen)
        self._observe(tree)
        found = list(self._stock_forms(tree, watch.seen))
        before = {module: watch.seen[module].call for module in found}
        tree, after = substitute(tree, found)
        if found:
            plain, watch = watch, watch_calls(tree, args, {**kwargs, **self.concrete}, self._is_wanted)
            if not self.custom.float_to_observed_mapping and _tells_apart(plain, watch):
                return self._run_stock(found, args, kwargs)
        if self.method != "export":
            paths = {module: path for path, module in tree.named_modules()}
            capture_bodies(tree, watch, self._is_open, lambda m, a, k: self._capture(m, a, k, paths[m], "auto"))
        self._update_regions(tree, watch.seen, {after[module]: call for module, call in before.items()})
        # nothing was put into the tree if no call was of interest
        as_run = not watch.seen and not self.custom.float_to_observed_mapping
        return self._capture(tree, args, kwargs, "", self.method, watch.reference if as_run else None)

    def _run_stock(self, found: Sequence[nn.Module], args: tuple[object, ...], kwargs: dict[str, object]) -> nn.Module:
        """Capture the model with stock modules as they are, since its code tells them from their quantizable forms."""
        names = ", ".join(dict.fromkeys(f"nn.{type(module).__name__}" for module in found))
        warnings.warn(
            f"left in float as they are: {names}. With quantizable forms in their places the model gives other "
            "outputs, or fails. Its code may ask for their type: isinstance(module, "
            f"{names.partition(',')[0]}) is true of forms, too.",
            stacklevel=7,
        )
        return dataclasses.replace(self, stock=True, inner=self.inner, shut=set(), opaque=[]).run(args, kwargs)

    def _capture(
        self,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        path: str,
        method: Method,
        reference: Reference | None = None,
    ) -> nn.Module:
        names = [*self.custom.non_traceable_module_names, *self.opaque]
        inside = [name.removeprefix(f"{path}.") for name in names if name.startswith(f"{path}.") or not path]
        present = {at for at, _ in module.named_modules()}
        return capture(
            module,
            args,
            kwargs,
            method=method,
            sizes=self.sizes,
            leaf_names=[name for name in inside if name in present],
            leaf_classes=self.leaves,
            part=join_path(self.context.path, path),
            concrete=self.concrete if not path else None,
            reference=reference,
        )

    def _check_names(self) -> None:
        paths = [path for path, _ in self.model.named_modules()]
        named = {
            "non_traceable_module_name": self.custom.non_traceable_module_names,
            "standalone_module_name": self.custom.standalone_module_names,
        }
        for key, names in named.items():
            for name in names:
                if name not in paths:
                    self._complain(f"{key} {name!r} matches no module.{closest(name, paths)}")
        custom = [cls for pairs in self.custom.float_to_observed_mapping.values() for cls in pairs]
        for cls in (*self.custom.non_traceable_module_classes, *self.custom.standalone_module_classes, *custom):
            if not any(isinstance(module, cls) for module in self.model.modules()):
                self._complain(f"the custom config names class {cls.__name__}, of which the model has no module.")

    def _complain(self, message: str) -> None:
        if self.context.strict:
            raise ConfigError(f"{message} strict=False makes this a warning.")
        warnings.warn(message, stacklevel=8)

    def _shut(self, tree: nn.Module) -> None:
        classes = tuple(self.custom.non_traceable_module_classes)
        for path, module in tree.named_modules(remove_duplicate=False):
            if path in self.custom.non_traceable_module_names or (classes and isinstance(module, classes)):
                self.shut.update(module.modules())
        for module in self.shut:
            module.__dict__[LEFT_ALONE] = True  # also stock modules, which are calls in any case

    def _is_open(self, module: nn.Module) -> bool:
        return module not in self.shut

    def _is_wanted(self, module: nn.Module) -> bool:
        """Tell whether a call of this module has to be known."""
        if isinstance(module, Region):
            return stage_of(module) in (Stage.CAPTURED, Stage.FUSED)
        return type(module) in FORMS or type(module) in self.custom.standalone_module_classes or module in self.named

    def _standalone(self, tree: nn.Module, seen: Mapping[nn.Module, FirstCall]) -> None:
        """Capture the standalone modules, inner ones first."""
        entries: dict[str, Standalone] = {}
        for path, module in tree.named_modules():
            entry = self.custom.standalone_module_names.get(path) if path else None
            entry = entry or self.custom.standalone_module_classes.get(type(module))
            if entry is not None and path and self._is_open(module) and not isinstance(module, Region):
                entries[path] = entry
        for path in sorted(entries, key=lambda at: -at.count(".")):
            module = tree.get_submodule(path)
            captured = self._capture_standalone(tree, path, module, entries[path], seen.get(module))
            replace_module(tree, module, captured)
            if not isinstance(captured, Region):
                self.opaque.append(path)

    def _capture_standalone(
        self, tree: nn.Module, path: str, module: nn.Module, entry: Standalone, seen: FirstCall | None
    ) -> nn.Module:
        if entry.example_inputs is not None:
            call = Call(entry.example_inputs, {})
        elif seen is not None:
            call = seen.call
        else:
            raise ConfigError(
                f"standalone module {path!r} is not called with the example inputs of the model. "
                "Give it example_inputs of its own."
            )
        here = join_path(self.context.path, path)
        custom, rules, own = entry.prepare_custom_config or PrepareCustomConfig(), self.rules, self.context.own_rules
        if entry.qconfig_mapping is not None:
            rules, own = Rules(entry.qconfig_mapping, rules.same_op, root=here), True
            custom = custom.with_standalone(rules.mapping.standalone)
        context = dataclasses.replace(
            self.context, path=here, model=self.model.get_submodule(path), rules=rules, custom=custom, own_rules=own
        )
        around = self._around(tree, path)
        job = _Capture(model=module, context=context, method=self.method, sizes=self.sizes, outer=around)
        captured = job.run(call.args, call.kwargs)
        self.inner += [context, *job.inner]
        return captured

    def _observe(self, tree: nn.Module) -> None:
        """Put the user's observed custom modules in."""
        pairs = self.custom.float_to_observed_mapping
        floats = {cls for by_class in pairs.values() for cls in by_class}
        taken, left = set[type](), dict[type, str]()
        for path, module in list(tree.named_modules()):
            if type(module) not in floats or not self._is_open(module) or not path:
                continue
            qconfig = self.rules.choose(self._site(tree, path, type(module))).qconfig
            kind = quant_type_of(qconfig)
            if kind is None or qconfig is None or type(module) not in pairs.get(kind, {}):
                if kind is not None:
                    left.setdefault(type(module), why_unused(type(module), path, kind, pairs))
                self.shut.update(module.modules())
                self.leaves.append(type(module))
                continue
            taken.add(type(module))
            observed = observe_custom(module, qconfig, pairs[kind][type(module)], kind)
            replace_module(tree, module, observed)
            self.shut.update(observed.modules())
            self.leaves.append(type(observed))
        for cls, why in left.items():
            if cls not in taken:
                self._complain(f"float_to_observed_custom_module_class {why}")

    def _stock_forms(self, tree: nn.Module, seen: Mapping[nn.Module, FirstCall]) -> Iterator[nn.Module]:
        """Yield the outermost stock modules that have a quantizable form, are called, and are to be quantized."""
        covered: set[nn.Module] = set()
        for path, module in () if self.stock else tree.named_modules():
            if type(module) not in FORMS or module in covered or module not in seen or not self._is_open(module):
                continue
            loops = isinstance(module, nn.RNNBase)
            if (loops and self.method == "export") or not self._asks(tree, path, module):
                continue
            covered.update(module.modules())
            yield module

    def _asks(self, tree: nn.Module, path: str, module: nn.Module) -> bool:
        """Tell whether a rule asks for quantization of a module or of something in it."""
        sites = [self._site(tree, path, type(module)), self._site(tree, join_path(path, "linear"), nn.Linear)]
        sites += [self._site(tree, join_path(path, at), type(part)) for at, part in module.named_modules() if at]
        choices = [self.rules.choose(site).qconfig for site in sites]
        return any(qconfig is not None and qconfig.weight is not None for qconfig in choices)

    def _site(self, tree: nn.Module, path: str, cls: type[nn.Module]) -> Site:
        scope = self._around(tree, path)
        return Site(path=join_path(self.context.path, path), kind=cls.__name__, spelling=cls, scope=scope)

    def _around(self, tree: nn.Module, path: str) -> tuple[tuple[str, str], ...]:
        steps = path.split(".") if path else []
        above = [".".join(steps[:count]) for count in range(len(steps))]
        inner = ((join_path(self.context.path, at), class_name(user_class(tree.get_submodule(at)))) for at in above)
        return (*self.outer, *inner)

    def _update_regions(
        self, tree: nn.Module, seen: Mapping[nn.Module, FirstCall], formed: Mapping[nn.Module, Call]
    ) -> None:
        """Regions that the user captured (fuse_fx) know no tensors, and their graphs call stock modules as leaves."""
        for region in [module for module in tree.modules() if isinstance(module, Region)]:
            if stage_of(region) is not Stage.FUSED:
                continue
            for module in [m for m in region.modules() if m in formed and not is_wrapped(m)]:
                replace_module(region, module, capture(module, formed[module].args, formed[module].kwargs))
            if region is not tree and region in seen:
                call = seen[region].call
                replace_module(tree, region, capture(region, call.args, call.kwargs))


def _tells_apart(plain: CalledModules, formed: CalledModules) -> bool:
    """Tell whether a model does something else once quantizable forms stand in the places of stock modules."""
    if plain.failed:
        return False  # there is nothing to compare with
    return formed.failed or difference(formed.outputs, plain.outputs, coarse=True) is not None
