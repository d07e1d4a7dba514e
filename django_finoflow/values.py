"""How values from runs are shown: always escaped, never as a template, and shortened where they are long.

``shown`` is for whoever decides, and reads like a form; ``payload`` is for whoever looks after runs, and reads like
JSON. The admin and the pages for people without it show the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.forms import BaseForm, ChoiceField, Field
from django.forms.utils import pretty_name
from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timezone import is_naive, localtime
from django.utils.translation import gettext as _

from . import telling

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
        return _listed((str(label), shown(part, depth + 1)) for label, part in value.items())
    if isinstance(value, SEVERAL):
        parts = ((shown(part, depth + 1),) for part in value)
        return format_html('<ul class="finoflow-list">{}</ul>', format_html_join("", "<li>{}</li>", parts))
    if isinstance(value, datetime) and not is_naive(value):
        value = localtime(value)
    return shortened(str(localize(value)), "finoflow-text")


def filled(data: Any, form: type[BaseForm] | None) -> SafeString:
    """Return the data of an answer as HTML for people, in the words of the form that was filled in, where it is known.

    Args:
        data: what was stored with the decision.
        form: the gate's form, as ``decisions.form_for`` gives it.
    """
    if form is None or not isinstance(data, Mapping):
        return shown(data)
    fields = form(data=None, prefix="answer").fields
    told = ((name, part, fields.get(name)) for name, part in data.items())
    return _listed((_label(name, field), shown(_chosen(part, field))) for name, part, field in told)


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
    """Return a moment as people here write it, in the time zone of whoever looks; as all our sentences do."""
    return telling.moment(when) if when else NOTHING


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


def _listed(pairs: Iterable[tuple[str, SafeString]]) -> SafeString:
    told = format_html_join("", "<div><dt>{}</dt><dd>{}</dd></div>", pairs)
    return format_html('<dl class="finoflow-pairs">{}</dl>', told)


def _label(name: Any, field: Field | None) -> str:
    return str(name) if field is None else str(field.label or pretty_name(str(name)))


def _chosen(value: Any, field: Field | None) -> Any:
    """Return what the choices of a field call a value, or each of several; another value as it is."""
    if not isinstance(field, ChoiceField) or hasattr(field, "queryset"):
        return value
    told: dict[str, Any] = {}
    choices: Any = field.choices
    for key, text in choices:
        told |= {str(k): t for k, t in text} if isinstance(text, list | tuple) else {str(key): text}
    if isinstance(value, SEVERAL):
        return [told.get(str(one), one) for one in value]
    return told.get(str(value), value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, SEVERAL):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
