"""The app of a host project, as the tests need one: rows that steps write, and a ``workflows.py``."""
