"""The options that examples share: `--quick` for the form that CI runs, `--data DIR` for real weights and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def options(doc: str | None, arguments: Sequence[str] | None, *, data: str = "") -> argparse.Namespace:
    """The parsed command line. `data` says what the directory of `--data` has; without it there is no such option."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, which shows the steps and little else")
    if data:
        parser.add_argument("--data", type=Path, help=f"directory with {data}")
    found = parser.parse_args(arguments)
    if data and found.data is not None and not found.data.is_dir():
        parser.error(
            f"--data {found.data}: there is no such directory. It should have {data}; leave --data out to do without."
        )
    if data and found.data is None:
        print(f"without --data: no {data}; what PyPI has takes its place.")
    return found
