"""The paper's result tables as data, figure by figure as printed."""

from eadp.evaluate.paper.tables import ALL, AVERAGE, Row, Table, figures, models, table, tables

__all__ = ["ALL", "AVERAGE", "Row", "Table", "figures", "models", "table", "tables"]
