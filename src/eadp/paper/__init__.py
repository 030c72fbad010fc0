"""The paper's result tables as data, figure by figure as printed."""

from eadp.paper.tables import ALL_TOKENS, AVERAGE, PaperRow, PaperTable, figures, models, table, tables

__all__ = ["ALL_TOKENS", "AVERAGE", "PaperRow", "PaperTable", "figures", "models", "table", "tables"]
