"""The options that examples share: `--quick` for the form that CI runs, `--data DIR` for real weights and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def options(doc: str | None, arguments: Sequence[str] | None, *, data: Sequence[str] = ()) -> argparse.Namespace:
    """The parsed command line. `data` are the files that the directory of `--data` has; without any, no such option."""
    names = " and ".join(filter(None, (", ".join(data[:-1]), *data[-1:])))
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, which shows the steps and little else")
    if data:
        parser.add_argument("--data", type=Path, help=f"directory with {names}")
    found = parser.parse_args(arguments)
    if data and found.data is None:
        print(f"without --data: no {names}; what PyPI has takes its place.")
    elif data:
        missing = [name for name in data if not (found.data / name).exists()]
        if not found.data.is_dir():
            parser.error(
                f"--data {found.data}: there is no such directory. It should have {names}; or leave --data out."
            )
        if missing:
            parser.error(
                f"--data {found.data} has no {', '.join(missing)}. It should have {names}; or leave --data out."
            )
    return found
