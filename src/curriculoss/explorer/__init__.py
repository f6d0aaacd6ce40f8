"""The explorer: one HTML page, without a server, on which losses and runs can be moved and compared."""

from curriculoss.explorer.page import build

__all__ = ["build"]
