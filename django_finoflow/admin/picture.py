"""The timeline of one run as a picture: its bars on a line, in numbers that a template puts into inline SVG.

Every place is a percentage, so that the picture fits a desk and a telephone alike, and its words are text beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils.formats import date_format
from django.utils.timezone import localtime

from .. import values
from .bars import Bar, lasting
from .scale import Scale

#: The least width of what shall be seen.
THIN = 0.4


class Piece(NamedTuple):
    """A rectangle: where it begins, and how wide it is."""

    begin: str
    width: str


class Row(NamedTuple):
    """One bar, laid out."""

    bar: Bar
    body: Piece
    before: Piece | None
    ahead: Piece | None
    marks: list[tuple[str, str]]
    when: str


def of(bars: Sequence[Bar], begin: datetime, end: datetime | None, now: datetime) -> dict[str, Any] | None:
    """Return what the template draws, or None if there is nothing to draw.

    Args:
        bars: what is drawn.
        begin: when the run began.
        end: when it ended, if it has.
        now: the present moment.
    """
    if not bars:
        return None
    last = end or now
    moments = [begin, last, *(bar.begin for bar in bars)]
    moments += [moment for bar in bars for moment in (bar.end, bar.due, bar.since) if moment is not None]
    moments += [mark.at for bar in bars for mark in bar.marks]
    scale = Scale(moments, [((bar.end or last) - bar.begin).total_seconds() for bar in bars])
    stretches = scale.stretches()
    return {
        "rows": [_row(bar, scale, last) for bar in bars],
        "now": None if end else _number(scale.at(now)),
        "lines": [_number(place) for place, _moment in scale.labelled([last])],
        "labels": _labels(scale, last),
        "stretches": [
            (_piece(s.begin, s.begin + s.width), _number(s.middle), lasting(timedelta(seconds=s.seconds), depth=1))
            for s in stretches
        ],
        "is_bent": scale.is_bent,
    }


def _row(bar: Bar, scale: Scale, last: datetime) -> Row:
    begin, end = scale.at(bar.begin), scale.at(bar.end or last)
    since = None if bar.since is None else _piece(scale.at(bar.since), begin)
    due = None if bar.due is None or bar.due <= (bar.end or last) else _piece(end, scale.at(bar.due))
    marks = [(_number(scale.at(mark.at)), mark.tone) for mark in bar.marks]
    return Row(bar, _piece(begin, end), since, due, marks, _when(bar))


def _when(bar: Bar) -> str:
    moments = [bar.begin, bar.end] if bar.end else [bar.begin]
    return " – ".join(values.moment(moment) for moment in moments)


def _labels(scale: Scale, last: datetime) -> list[tuple[str, str, str]]:
    """Return place, anchor and text of the labels of the line; the same text is not written twice."""
    labels: list[tuple[str, str, str]] = []
    shape = _format(scale)
    for place, moment in scale.labelled([last]):
        text = date_format(localtime(moment), shape)
        if not labels or labels[-1][2] != text:
            anchor = "start" if place < 8 else "end" if place > 92 else "middle"
            labels.append((_number(place), anchor, text))
    return labels


def _format(scale: Scale) -> str:
    begin, end = localtime(scale.begin), localtime(scale.end)
    if scale.seconds < 120:
        return "H:i:s"
    if begin.date() == end.date():
        return "H:i"
    return "D H:i" if scale.seconds < 5 * 86400 else "SHORT_DATE_FORMAT"


def _piece(begin: float, end: float) -> Piece:
    begin = min(begin, 100 - THIN)
    return Piece(_number(begin), _number(max(end - begin, THIN)))


def _number(value: float) -> str:
    """Return a number as SVG takes it, whatever the language of the page writes for a decimal point."""
    return f"{value:.2f}%"
