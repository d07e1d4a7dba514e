"""``{% load finoflow %}``: how many gates wait for whoever looks, for the menu of the host's own pages."""

from __future__ import annotations

from typing import Any

from django import template

from ..models import Wait

register = template.Library()


@register.simple_tag(takes_context=True)
def finoflow_open_gates(context: dict[str, Any]) -> int:
    """Return the number of open gates that the user can answer, at most 250; it is counted once for each request.

    ``{% finoflow_open_gates as waiting %}`` keeps it in a variable. Without a request, or a login, it is 0.
    """
    request = context.get("request")
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return 0
    counted = getattr(request, "_finoflow_open_gates", None)
    if counted is None or counted[0] != user.pk:
        counted = request._finoflow_open_gates = (user.pk, len(Wait.objects.inbox(user).top()))  # type: ignore[union-attr]
    return counted[1]
