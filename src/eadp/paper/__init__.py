"""The result tables of the EADP paper as data, exactly as printed."""

from eadp.paper.tables import ALL_TOKENS, AVERAGE, PaperRow, PaperTable, figures, models, table, tables

__all__ = ["ALL_TOKENS", "AVERAGE", "PaperRow", "PaperTable", "figures", "models", "table", "tables"]
