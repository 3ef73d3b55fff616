"""Apply what was found after calibration (graph/amendments.py) to the answers of the rules, and to specs."""

from __future__ import annotations

from dataclasses import replace

from fxquant.config.qconfig import as_mode
from fxquant.graph.context import Context
from fxquant.graph.notes import note_of, remark
from fxquant.graph.region import Region, origin_of, preparation_of
from fxquant.passes.candidates import choice_of


def amend_choices(region: Region, context: Context) -> None:
    """Lift the ops that amendments name, whatever the rules say of them."""
    for node in region.graph.nodes if context.amendments else ():
        lifted = context.amendments.lifts.get((origin_of(region).path, node.name))
        choice = choice_of(node)
        if lifted is not None and choice is not None and choice.qconfig is not None:
            node.meta["choice"] = replace(choice, qconfig=as_mode(choice.qconfig, lifted.mode))
            remark(node, lifted.why)


def amend_grids(region: Region, context: Context) -> None:
    """Change the specs that amendments name."""
    preparation = preparation_of(region)
    specs = dict(preparation.quantizers or {})
    for (path, name), change in context.amendments.grids.items() if context.amendments else ():
        if path == origin_of(region).path and name in specs:
            specs[name] = specs[name].with_(**dict(change.changes))
            notes = [(node, note) for node in region.graph.nodes if (note := note_of(node)) is not None]
            readers = [node for node, note in notes if name in note.inputs]
            for node in readers or [node for node, note in notes if name == note.output]:
                remark(node, change.why)
    preparation.quantizers = specs if preparation.quantizers is not None else None
