"""How values from runs are shown: always escaped, never as a template, and shortened where they are long.

``shown`` is for whoever decides, and reads like a form; ``payload`` is for whoever looks after runs, and reads like
JSON. The admin and the pages for people without it show the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils.formats import date_format, localize
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext as _

NOTHING = "–"
LONG = 240  # characters shown before the rest has to be unfolded
DEEP = 4  # levels of lists and mappings shown as such

SEVERAL = (list, tuple, set, frozenset)


def shown(value: Any, depth: int = 0) -> SafeString:
    """Return a value of a gate as HTML for people."""
    if isinstance(value, bool):
        return format_html("{}", _("Yes") if value else _("No"))
    if value is None or value == "":
        return format_html("{}", NOTHING)
    if isinstance(value, bytes) or depth >= DEEP:
        return payload(value)
    if isinstance(value, Mapping):
        pairs = ((str(label), shown(part, depth + 1)) for label, part in value.items())
        return format_html(
            '<dl class="finoflow-pairs">{}</dl>', format_html_join("", "<div><dt>{}</dt><dd>{}</dd></div>", pairs)
        )
    if isinstance(value, SEVERAL):
        parts = ((shown(part, depth + 1),) for part in value)
        return format_html('<ul class="finoflow-list">{}</ul>', format_html_join("", "<li>{}</li>", parts))
    if isinstance(value, datetime) and not is_naive(value):
        value = localtime(value)
    return shortened(str(localize(value)), "finoflow-text")


def payload(value: Any) -> SafeString:
    """Return a payload as HTML for those who look after runs."""
    if value is None:
        return format_html("{}", NOTHING)
    return shortened(text(value), "finoflow-payload")


def text(value: Any) -> str:
    """Return a payload as text: a string as it is, all else as JSON, with what JSON lacks as Python prints it."""
    if isinstance(value, str):
        return value
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def moment(when: datetime | None) -> str:
    """Return a moment as a short text in the time zone of whoever looks."""
    return date_format(localtime(when), "SHORT_DATETIME_FORMAT") if when else NOTHING


def error(recorded: Mapping[str, Any] | None) -> SafeString:
    """Return a recorded error as HTML: its message, and the traceback to unfold."""
    if recorded is None:
        return format_html("{}", NOTHING)
    message = str(recorded.get("message", ""))
    kind = str(recorded.get("type", "")).removeprefix("builtins.")
    line = shortened(f"{kind}: {message}" if message else kind, "finoflow-error")
    trace = str(recorded.get("traceback") or "")
    return line if not trace else format_html("{}{}", line, folded(_("Traceback"), trace))


def shortened(words: str, css: str) -> SafeString:
    """Return text as HTML, with what goes beyond ``LONG`` characters to unfold."""
    if len(words) <= LONG:
        return format_html('<span class="{}">{}</span>', css, words)
    return folded(Truncator(words).chars(LONG), words, css)


def folded(summary: str, words: str, css: str = "finoflow-payload") -> SafeString:
    """Return a line that unfolds to the full text."""
    return format_html('<details><summary>{}</summary><pre class="{}">{}</pre></details>', summary, css, words)


def badge(words: Any, tone: str = "") -> SafeString:
    """Return a status as HTML; ``tone`` is ``good``, ``bad``, ``busy`` or empty."""
    return format_html('<span class="finoflow-badge {}">{}</span>', f"finoflow-{tone}" if tone else "", words)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, SEVERAL):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
