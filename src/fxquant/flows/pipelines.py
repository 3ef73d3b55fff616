"""The pipelines, each a tuple of passes that is read top to bottom. docs/architecture.md has the same as a table.

    fuse_fx          FUSE
    prepare_fx       PREPARE, then DECIDE on a copy for each target, which tells what WATCH has to watch
    prepare_qat_fx   PREPARE_QAT, DECIDE_QAT
    freeze           DECIDE, FREEZE
    convert_fx       DECIDE, CONVERT, CONNECT, and the passes of an engine

What a pass is: graph/run_passes.py. How to write one: docs/writing_a_pass.md.
"""

from __future__ import annotations

from fxquant.graph.run_passes import Pipeline
from fxquant.passes.amend import amend_choices, amend_grids
from fxquant.passes.annotate import annotate
from fxquant.passes.batch_norm_to_conv import batch_norm_to_conv
from fxquant.passes.choose import choose, see_ops
from fxquant.passes.clear_ties import clear_ties
from fxquant.passes.connect_reads import connect_reads
from fxquant.passes.convert import convert
from fxquant.passes.custom_modules import mark_custom
from fxquant.passes.drop_dropout import drop_dropout
from fxquant.passes.drop_noops import drop_noops
from fxquant.passes.fix_scales import freeze_quantizers, round_weights
from fxquant.passes.fold_bn import fold_bn
from fxquant.passes.hard_curves import sigmoid_to_hardsigmoid, silu_to_hardswish
from fxquant.passes.hoist_dim import hoist_dim
from fxquant.passes.insert import insert
from fxquant.passes.insert_blocks import insert_blocks
from fxquant.passes.join_relu import join_relu
from fxquant.passes.mean_to_pool import mean_to_pool
from fxquant.passes.merge_blocks import merge_blocks
from fxquant.passes.open_boundary import connect_regions, open_boundary, quantize_boundary
from fxquant.passes.pair_bn import pair_bn
from fxquant.passes.price_rewrites import price_rewrites
from fxquant.passes.round_leaky_slopes import round_leaky_slopes
from fxquant.passes.run_algorithms import adapt_calibrated, apply_algorithms, rewrite_float
from fxquant.passes.scale_average_pools import scale_average_pools
from fxquant.passes.solve_positions import solve_positions
from fxquant.passes.split_ops import split_ops
from fxquant.passes.split_pools import split_pools
from fxquant.passes.split_to_slice import split_to_slice
from fxquant.passes.watch import name_observed, recall, unwatch, watch
from fxquant.passes.write_request import write_request

HARDWARE: Pipeline = (  # those that the target asks for
    silu_to_hardswish,
    sigmoid_to_hardsigmoid,
    round_leaky_slopes,
    batch_norm_to_conv,
    split_to_slice,
    mean_to_pool,
    split_pools,
    scale_average_pools,
)
FUSE: Pipeline = (
    hoist_dim,
    fold_bn,
    join_relu,
)
PREPARE: Pipeline = (
    see_ops,
    hoist_dim,
    fold_bn,
    drop_noops,
    choose,
    *HARDWARE,
    rewrite_float,
    write_request,
)
PREPARE_QAT: Pipeline = (
    see_ops,
    hoist_dim,
    pair_bn,
    drop_noops,
    choose,
    *HARDWARE,
    write_request,
)
WATCH: Pipeline = (watch,)
ADAPT: Pipeline = (
    unwatch,
    adapt_calibrated,
)
DECIDE: Pipeline = (
    *ADAPT,
    choose,
    split_ops,
    amend_choices,
    annotate,
    amend_grids,
    mark_custom,
    insert,
    quantize_boundary,
    recall,
)
DECIDE_QAT: Pipeline = (
    split_ops,
    annotate,
    mark_custom,
    insert,
    insert_blocks,
    quantize_boundary,
    name_observed,
)
FREEZE: Pipeline = (
    apply_algorithms,
    drop_dropout,
    merge_blocks,
    freeze_quantizers,
    round_weights,
    price_rewrites,
    solve_positions,
    clear_ties,
)
CONVERT: Pipeline = (
    apply_algorithms,
    drop_dropout,
    merge_blocks,
    freeze_quantizers,
    price_rewrites,
    solve_positions,
    clear_ties,
    convert,
    open_boundary,
)
CONNECT: Pipeline = (  # when all regions are converted
    connect_regions,
    connect_reads,
)
