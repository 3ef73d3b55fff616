"""Write down in a region what was asked for about it, beside the rules, whose answers its nodes carry."""

from __future__ import annotations

from fxquant.config.rules import Site
from fxquant.graph.context import Context
from fxquant.graph.notes import PrepareRequest
from fxquant.graph.region import Region, origin_of, preparation_of


def write_request(region: Region, context: Context) -> None:
    """Keep the target, and which inputs and outputs are to be integers, until all is decided."""
    if origin_of(region).path != context.path:
        preparation_of(region).request = PrepareRequest(target=context.target, own_rules=context.own_rules)
        return
    assert context.rules is not None
    chosen = context.rules.choose(Site(path=context.path, kind="", spelling=None)).qconfig
    preparation_of(region).request = PrepareRequest(
        target=context.target,
        inputs=tuple(context.custom.input_quantized_indexes),
        outputs=tuple(context.custom.output_quantized_indexes),
        boundary=chosen.output_spec if chosen is not None else None,
        own_rules=context.own_rules,
    )
