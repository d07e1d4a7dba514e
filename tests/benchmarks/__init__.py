"""How fast the engine is, as ratios to something measured in the same run: machines are noisy, ratios less so.

``python -m tests.benchmarks`` runs all of them, ``python -m tests.benchmarks steps claims`` some. PostgreSQL is found
or brought as for the tests. The peers ``dbos`` and ``absurd-sdk`` (with ``absurdctl``) take part where installed.
"""
