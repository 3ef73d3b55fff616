"""`python -m fxquant`."""

from fxquant.cli import app

app(prog_name="fxquant")
