"""What the picture of a run shows of its rows: a bar for each step and wait, and one for many where they are too many.

A bar says in words all that it shows in colour and length. ``picture`` lays the bars out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..models import Step, Wait
from ..statuses import Outcome, StepKind, StepStatus, Undo, WaitKind

#: Bars of one picture: more nobody can take in, and the table below has them all.
MOST = 40

STEP_TONES = {StepStatus.DONE: "step", StepStatus.FAILED: "bad", StepStatus.RETRYING: "again"}
TONES = ("bad", "again", "wait", "timer", "step")  # of several bars in one, the first is shown


class Mark(NamedTuple):
    """A moment on a bar."""

    at: datetime
    tone: str
    text: str


class Bar(NamedTuple):
    """A stretch of time in which one thing was done or waited for. ``end`` is None while it lasts.

    ``since`` is when earlier attempts may have begun, ``due`` when it will be over at the latest.
    """

    name: str
    words: str
    tone: str
    begin: datetime
    end: datetime | None
    since: datetime | None = None
    due: datetime | None = None
    marks: tuple[Mark, ...] = ()
    link: str = ""
    many: int = 1


def of(steps: Iterable[Step], waits: Iterable[Wait], now: datetime, link: Callable[[Wait], str]) -> list[Bar]:
    """Return the bars of a run, in order of position.

    Args:
        steps: its steps.
        waits: its waits; gates with their decisions and events.
        now: the present moment.
        link: gives the address of a wait's page, or nothing.
    """
    rows: list[Step | Wait] = sorted([*steps, *waits], key=lambda row: (row.index, row.branch))
    bars, ended = [], dict[str, datetime]()
    for row in rows:
        bar = _step(row, ended.get(row.branch)) if isinstance(row, Step) else _wait(row, now, link(row))
        if bar is not None:
            bars.append(bar)
            ended[row.branch] = bar.end or bar.begin
    return fewer(bars)


def fewer(bars: list[Bar]) -> list[Bar]:
    """Return ``MOST`` bars at the most: first what went well is taken together, then whatever stands side by side."""
    if len(bars) <= MOST:
        return bars
    runs = groupby(bars, key=_is_plain)
    found = [bar for plain, some in runs for bar in ([together(list(some))] if plain else some)]
    if len(found) <= MOST:
        return found
    size = -(-len(found) // MOST)
    return [together(found[at : at + size]) for at in range(0, len(found), size)]


def together(bars: Sequence[Bar]) -> Bar:
    """Return one bar for several."""
    first, last = bars[0], bars[-1]
    if len(bars) == 1:
        return first
    many = sum(bar.many for bar in bars)
    end = None if any(bar.end is None for bar in bars) else max(bar.end for bar in bars if bar.end)
    begin = min(bar.begin for bar in bars)
    words = [ngettext("%d checkpoint", "%d checkpoints", many) % many]
    if end is not None:
        words.append(lasting(end - begin))
    return Bar(
        name=f"{first.name.partition(' … ')[0]} … {last.name.rpartition(' … ')[2]}",
        words=" · ".join(words),
        tone=min((bar.tone for bar in bars), key=TONES.index),
        begin=begin,
        end=end,
        due=max((bar.due for bar in bars if bar.due), default=None),
        marks=tuple(mark for bar in bars for mark in bar.marks)[:MOST],
        many=many,
    )


def lasting(length: timedelta, depth: int = 2) -> str:
    """Return how long something took, short and in the units that fit, ``depth`` of them."""
    seconds = length.total_seconds()
    if seconds < 0.001:
        return _("under 1 ms")
    if seconds < 1:
        return _("%d ms") % (seconds * 1000)
    if seconds < 60:
        return _("%.1f s") % seconds
    if length.days >= 2:
        return ngettext("%d day", "%d days", length.days) % length.days
    start = datetime(2000, 1, 1)
    return timesince(start, start + length, depth=depth)


def _is_plain(bar: Bar) -> bool:
    return bar.tone in ("step", "timer") and bar.end is not None and not bar.marks and bar.since is None


def _step(step: Step, before: datetime | None) -> Bar | None:
    if step.started_at is None:
        return None
    is_over = step.status != StepStatus.RETRYING
    words = [str(step.get_status_display())]
    if step.finished_at is not None and is_over:
        words.append(lasting(step.finished_at - step.started_at))
    if step.attempts > 1:
        words.append(ngettext("%d attempt", "%d attempts", step.attempts) % step.attempts)
    undo: tuple[Mark, ...] = ()
    if step.compensation and step.compensated_at:
        tone = "bad" if step.compensation == Undo.FAILED else "undone"
        undo = (Mark(step.compensated_at, tone, _("undoing: %s") % step.get_compensation_display()),)
    return Bar(
        name=_("branch: %s") % step.result if step.kind == StepKind.BRANCH else step.step_id,
        words=" · ".join([*words, *(mark.text for mark in undo)]),
        tone=STEP_TONES.get(StepStatus(step.status), "step"),
        begin=step.started_at,
        end=step.finished_at or step.started_at,
        since=before if step.attempts > 1 else None,
        due=None if is_over else step.due_at,
        marks=undo,
    )


def _wait(wait: Wait, now: datetime, link: str) -> Bar:
    marks = _marks(wait) if wait.is_gate else ()
    kind = _("gate") if wait.is_gate else str(wait.get_kind_display())
    words = [kind, str(wait.get_outcome_display()), lasting((wait.closed_at or now) - wait.opened_at)]
    return Bar(
        name=wait.name,
        words=" · ".join([*words, *(mark.text for mark in marks)]),
        tone="bad" if wait.outcome == Outcome.TIMED_OUT else "timer" if wait.kind == WaitKind.TIMER else "wait",
        begin=wait.opened_at,
        end=wait.closed_at,
        due=wait.due_at if wait.is_open else None,
        marks=marks,
        link=link,
    )


def _marks(gate: Any) -> tuple[Mark, ...]:
    """Return what happened at a gate while it was open."""
    marks = [
        Mark(event.happened_at, "event", f"{event.get_kind_display()} {event.user_name}".strip())
        for event in gate.events.all()
    ]
    for made in gate.decisions.all():
        sentence = _("approved by %s") if made.approved else _("rejected by %s")
        name = made.user_name or _("its deadline")
        marks.append(Mark(made.decided_at, "good" if made.approved else "bad", sentence % name))
    return tuple(sorted(marks, key=lambda mark: mark.at))
