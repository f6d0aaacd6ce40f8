"""From runs to what people read: one self-contained HTML page, a table of means, a picture of the dynamics."""

from curriculoss.report.page import build, headline
from curriculoss.report.pictures import dynamics
from curriculoss.report.records import table

__all__ = ["build", "dynamics", "headline", "table"]
