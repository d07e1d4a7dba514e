"""The pages for staff: runs to look at, gates to decide. They read rows and call the API; nothing is decided here.

``runs`` and ``gates`` are the two registered admins. What both share is in ``pages`` (read-only pages whose buttons
lead to a page that asks) and ``values`` (how payloads are shown). ``deciding`` has the pages on which a gate is
answered, ``timeline`` the story of one run.
"""

from django.contrib import admin

from ..models import Execution, Wait
from .gates import GateAdmin
from .runs import RunAdmin

__all__ = ["GateAdmin", "RunAdmin"]

admin.site.register(Execution, RunAdmin)
admin.site.register(Wait, GateAdmin)
