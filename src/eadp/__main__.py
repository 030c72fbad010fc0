"""`python -m eadp` is the `eadp` command."""

from eadp.cli import app

if __name__ == "__main__":
    app()
