"""Choose the scales of power-of-two hardware together, so that all that it asks of them holds. Runs on frozen graphs.

The tensors are activations, weights and biases with one symmetric power-of-two scale; the rules are the target's
`positions` (config/limits.py). Where all hold, nothing moves. The Decision of an op says which scale of its moved, for
which rule, and what that costs.

    node  conv (x, w, b) -> y          i = p_x, o = p_y after the tail of its group, w, b
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import fx

from fxquant.config.limits import Position
from fxquant.graph.context import Context
from fxquant.graph.notes import decision_of, note_of, remark
from fxquant.graph.region import Region, preparation_of
from fxquant.numerics.positions.measure import terms
from fxquant.numerics.positions.problem import Problem, Rule
from fxquant.numerics.positions.repair import repair
from fxquant.numerics.positions.solve import solve
from fxquant.ops.table import Op, OpTable, activation_nodes
from fxquant.passes.find_quantizer import quantizer_of
from fxquant.passes.measure_moves import measure_moves
from fxquant.passes.position_tensors import STORED, PositionTensors


def solve_positions(region: Region, context: Context) -> None:
    """Move power-of-two scales, together, to where all that the target asks of them holds at the least cost."""
    positions = preparation_of(region).positions
    if not positions or context.uncalibrated:
        return
    tensors = PositionTensors(region)
    rules = tuple(_rules(region, context.ops, positions, tensors))
    problem = Problem(start=tensors.start, cost=tensors.cost, rules=rules)
    solved = solve(problem)
    float_calls, preparation_of(region).float_calls = preparation_of(region).float_calls, None
    found = solved if float_calls is None else measure_moves(tensors, problem, _starts(problem, solved), float_calls)
    for name, place in found.items():
        if place != tensors.start[name]:
            tensors.move(name, place)
            _say(tensors, name, problem, solved, found)


def _starts(problem: Problem, solved: dict[str, int]) -> list[dict[str, int]]:
    """Return the solution, and what greedy repair makes of the start, if that keeps all rules and is another.

    The noise of tensors adds up as the cost says only where errors have nothing to do with each other.
    """
    repaired = repair(problem)
    return [solved] if repaired == solved or problem.broken(repaired) else [solved, repaired]


def _rules(region: Region, ops: OpTable, positions: tuple[Position, ...], tensors: PositionTensors) -> Iterator[Rule]:
    for node in region.graph.nodes:
        note, op = note_of(node), ops.of_node(node, region)
        if op is None or note is None or note.group not in (None, node.name):
            continue
        mine = [each for each in positions if op.kind in each.kinds]
        if not mine:
            continue
        last, output = _end(region, node)
        tail = None if last is node else ops.of_node(last, region)
        operands = activation_nodes(node, op)
        makers = {made.kind for each in operands if (made := _maker(region, ops, each)) is not None}
        inputs = [tensors.activation(each) for each in operands]
        names = {"o": tensors.activation(output)}
        if op.has_weight and node.op == "call_module":
            names |= {"w": tensors.weight(node), "b": tensors.bias(node)}
        for position in mine:
            if (position.before and (tail is None or tail.kind not in position.before)) or (
                position.after and not position.after & makers
            ):
                continue
            asked = terms(position.measure)
            given = {letter: name for letter, name in names.items() if name is not None}
            known = tuple(name for name in inputs if name is not None)
            if any(letter not in given for letter in asked if letter != "i"):
                continue  # a float tensor has no position
            if "i" in asked and (not known or len(known) != len(inputs)):
                continue
            yield Rule(node=node.name, position=position, i=known, **given)


def _maker(region: Region, ops: OpTable, operand: fx.Node) -> Op | None:
    while quantizer_of(region, operand) is not None and isinstance(operand.args[0], fx.Node):
        operand = operand.args[0]
    return ops.of_node(operand, region)


def _end(region: Region, node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """(the last node of a group, the call of the quantizer after it)."""
    note = note_of(node)
    while note is not None:
        found = [user for user in node.users if quantizer_of(region, user) is not None]
        if found:
            return node, found[0]
        inside = [user for user in node.users if (other := note_of(user)) is not None and other.group == note.group]
        if len(inside) != 1:
            break
        node = inside[0]
    return node, None


def _say(
    tensors: PositionTensors, name: str, problem: Problem, solved: Mapping[str, int], found: Mapping[str, int]
) -> None:
    """Write into a Decision which scale moved, for what, and the cost."""
    node, before, after = tensors.owner[name], problem.start[name], found[name]
    if decision_of(node) is None:
        return
    about = [rule for rule in problem.rules if name in rule.tensors]
    causes = [rule for rule in about if not rule.holds({**found, name: before})]
    if not causes and solved[name] == before:
        why = "less error at the outputs"  # measured
    else:
        why = str((causes or about)[0])
    what = name.partition(" ")[0] if name.startswith(STORED) else "output"
    old, new = problem.cost(name, before), problem.cost(name, after)
    price = f", {10 * math.log10(new / old):+.1f} dB of noise" if old > 0 and new > 0 else ""
    remark(node, f"{what} moved from 2^{-before} to 2^{-after} for {why}{price}")
