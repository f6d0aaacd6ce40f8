"""The paper: its numbers and settings as data, and its tables, figures and claims from runs."""
