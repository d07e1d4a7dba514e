"""The company's shop: what it buys, and what it sells, as two workflows that undo themselves when they fail.

``workflows`` has both, built from their steps, and ``models`` the ledger they write. ``views`` is the page on which
people ask for purchases. ``loading``, ``answers`` and ``outcomes`` are there for the ``demo`` command.
"""
