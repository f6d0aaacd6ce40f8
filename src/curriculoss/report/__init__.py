"""Reports on runs: a self-contained HTML page, a table of means, a headline, a figure of the dynamics."""

from curriculoss.report.charts import dynamics
from curriculoss.report.groups import ResultRow, table
from curriculoss.report.webpage import build, headline

__all__ = ["ResultRow", "build", "dynamics", "headline", "table"]
