"""Expense claims of a small company: from the finance team's file to the ledger.

``claims`` reads the file, ``loading`` starts a run for each claim in it, ``workflows`` says what becomes of a claim, by
the rules in ``policy``, and ``forms`` what finance and managers fill in; ``people``, ``answers`` and ``outcomes`` are
there for the ``demo`` command.
"""
