"""The company's shop: what it buys, and what it sells, as two workflows that undo themselves when they fail.

``workflows`` has both, built from their steps, and ``models`` the ledger they write. ``loading``, ``answers`` and
``outcomes`` are there for the ``demo`` command.
"""
