"""How the engine stops a drive: exceptions that are no errors.

They derive from ``BaseException``, so that ``except Exception`` in a workflow cannot swallow them (rule D9). Never
catch them.
"""


class DriveStopped(BaseException):
    """Base of the reasons why a body is left before its end."""


class Parked(DriveStopped):
    """The run waits; its rows say for what."""


class LeaseLost(DriveStopped):
    """The run is no longer ours: cancelled, deleted, or driven by another worker. Nothing more is written."""


class Interrupted(DriveStopped):
    """The worker stops, or the caller's ``abort`` is set. The run is due again for whoever comes next."""


class Mismatch(DriveStopped):
    """The body asked for another checkpoint than the one recorded at its position (rule D3)."""
