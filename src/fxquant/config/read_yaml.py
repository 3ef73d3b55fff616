"""The text of a YAML file as plain values, and the line of each key. Nothing of it is run.

What a file may do to its reader is bounded: aliases of aliases can stand for more than any memory holds, a key that is
there twice hides the first one, and values such as a month 13 raise errors of their own.
"""

from __future__ import annotations

import yaml

from fxquant.errors import ConfigError

MAX_NODES = 100_000  # values, with all that aliases stand for; 64 letters of a text count as one
_LETTERS = 64
Lines = dict[tuple[str, ...], int]


def read_yaml(text: str, name: str) -> tuple[object, Lines]:
    """Return what a text says, and the line of each key. Errors begin with the name, and the line where it is known."""
    try:
        lines: Lines = {}
        _walk(name, yaml.compose(text, Loader=yaml.SafeLoader), (), lines, [0])
        return yaml.safe_load(text), lines
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deep, or has a value inside of itself.") from None


def _walk(name: str, node: object, at: tuple[str, ...], lines: Lines, count: list[int]) -> None:
    """Find the line of each key, and make each value by itself."""
    count[0] += 1
    if isinstance(node, yaml.ScalarNode):
        count[0] += len(node.value) // _LETTERS
        _check_value(name, node)
    if count[0] > MAX_NODES:
        raise ConfigError(f"{name} has over {MAX_NODES} values, or aliases that stand for as many.")
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _walk(name, child, (*at, str(index)), lines, count)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{name}:{key.start_mark.line + 1}: a key is a list or a mapping. Give a word.")
            word, line = str(key.value), key.start_mark.line + 1
            if word != "<<":  # it takes in another mapping
                _check_value(name, key)
            if word in seen and word != "<<":
                raise ConfigError(f"{name}:{line}: the key {'.'.join((*at, word))} is there twice. Keep one.")
            seen.add(word)
            lines[(*at, word)] = line
            _walk(name, child, (*at, word), lines, count)


def _check_value(name: str, node: yaml.ScalarNode) -> None:
    """Raise where YAML takes a text for a number or a date that it is not."""
    try:
        yaml.constructor.SafeConstructor().construct_object(node)
    except yaml.YAMLError:
        raise
    except Exception as error:  # int(), float(), a table of booleans, dates: each has its own
        where = f"{name}:{node.start_mark.line + 1}"
        kind = node.tag.rpartition(":")[2]
        raise ConfigError(f"{where}: {node.value[:40]!r} is no {kind} ({error!r:.80}). Put a text in quotes.") from None
