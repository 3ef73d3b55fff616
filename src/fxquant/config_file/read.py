"""A conf.yaml as checked values. Errors name the line, the key and the closest name; nothing of a file is run.

read_conf(path or dict)  ->  Conf, and notes about what has no meaning here
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fxquant.config.forms import closest
from fxquant.config_file.notes import notes_of
from fxquant.config_file.sections.conf import Conf
from fxquant.errors import ConfigError

MAX_NODES = 100_000  # aliases of aliases can stand for more than any memory holds
Lines = dict[tuple[str, ...], int]


def read_conf(source: str | Path | Mapping[str, object] | Conf) -> tuple[Conf, tuple[str, ...]]:
    """Return the sections of a file (or of a dict of the same form), and notes about what has no meaning here."""
    if isinstance(source, Conf):
        return source, notes_of(source)
    if isinstance(source, Mapping):
        name, content = "the configuration", dict(source)
        lines: Lines = {}
    else:
        name = str(source)
        content, lines = _load(Path(source))
    try:
        conf = Conf.model_validate(content)
    except ValidationError as error:
        raise ConfigError("\n".join(_say(name, lines, each) for each in error.errors())) from None
    return conf, notes_of(conf)


def _load(path: Path) -> tuple[dict[str, object], Lines]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {reason}. `fxquant init` writes a file to start from.") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: Lines = {}
        _walk(str(path), root, (), lines, [0])
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deep, or has a value inside of itself.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no mapping. It has to have the key 'model'; `fxquant init` writes an example.")
    return content, lines


def _walk(name: str, node: object, at: tuple[str, ...], lines: Lines, count: list[int]) -> None:
    """The line of each key. A key that is there twice would hide the first one, and is an error."""
    count[0] += 1
    if count[0] > MAX_NODES:
        raise ConfigError(f"{name} has over {MAX_NODES} values, or aliases that stand for as many.")
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _walk(name, child, (*at, str(index)), lines, count)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, child in node.value:
            word, line = str(key.value), key.start_mark.line + 1
            if word in seen and word != "<<":
                raise ConfigError(f"{name}:{line}: the key {'.'.join((*at, word))} is there twice. Keep one.")
            seen.add(word)
            lines[(*at, word)] = line
            _walk(name, child, (*at, word), lines, count)


def _say(name: str, lines: Lines, error: ErrorDetails) -> str:
    """One line about one mistake: file, line, key, what is wrong, what is close."""
    at = tuple(str(part) for part in error["loc"])
    text = str(error["msg"]).removeprefix("Value error, ")
    unknown = re.match(r"the key '(.*?)' is unknown", text)
    where = (*at, unknown.group(1)) if unknown else at
    known = next((where[:end] for end in range(len(where), 0, -1) if where[:end] in lines), ())
    line = f":{lines[known]}" if known else ""
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        hint = closest(str(error["input"]), choices)
        text = f"is {error['input']!r}; expected one of {', '.join(choices)}.{hint}"
    elif error["type"] == "missing":
        text = "is missing"
    path = ".".join(known or at)
    return f"{name}{line}: {path + ': ' if path else ''}{text}"
