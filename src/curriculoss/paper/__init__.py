"""The paper: its numbers and settings, as data."""
