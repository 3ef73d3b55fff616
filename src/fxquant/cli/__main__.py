"""`python -m fxquant.cli`."""

from fxquant.cli import app

app()
