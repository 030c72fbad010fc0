"""Refuses a transformers that is too old. Imported before anything that would fail on it without an explanation."""

from eadp.compat import require_transformers

require_transformers("eadp")
