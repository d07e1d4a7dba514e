"""What a gate asks, of whom, and what counts as an answer.

``Approval`` is the declaration on a workflow. When a run reaches the gate it is evaluated once, for that run, and the
outcome is stored with the wait (``Question``): what people see and who they are does not change under them while they
decide. Only the ``form`` is not stored: a page takes it from the definition, never from a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.forms import BaseForm, ModelChoiceField, ModelMultipleChoiceField
from django.utils.functional import Promise

from . import durations
from .audience import DEFAULT_PERMISSION, Audience, Candidates, Users, check_names, check_people, found
from .exceptions import DefinitionError, DurationError
from .names import check_name

__all__ = ["DEFAULT_PERMISSION", "Approval", "Audience", "Candidates", "Question"]

REASONS = ("reject", "always", "never")
REJECTIONS = ("continue", "fail")
TIMEOUTS = ("fail", "approve", "reject")

#: What is done at a notice's time.
REMIND, ESCALATE = "remind", "escalate"

#: What of a form could change its fields, or what comes of them.
_MAY_CONVERT = ("__init__", "clean", "full_clean", "_clean_fields", "_clean_form", "_post_clean", "cleaned_data")

_SOME_DAY = datetime(2026, 1, 1, tzinfo=UTC)  # durations are only checked here; the time now asks for settings


class Question(NamedTuple):
    """An approval as evaluated for one run, ready to be stored with its wait.

    ``notices`` are kind, delay from the opening, and whom an escalation adds.
    """

    snapshot: dict[str, Any]
    audience: Audience
    notices: tuple[tuple[str, Any, Audience | None], ...] = ()

    def row(self, opened_at: datetime, due_at: datetime | None) -> dict[str, Any]:
        """Return what a wait that opens then keeps of it. Notices for after the deadline are left out."""
        schedule = [
            {"kind": kind, "at": at, **({"audience": added.plain()} if added else {})}
            for kind, delay, added in self.notices
            if (at := durations.due(delay, opened_at)) and (due_at is None or at < due_at)
        ]
        schedule.sort(key=lambda notice: (notice["at"], notice["kind"]))
        excluded = self.snapshot["exclude_deciders_of"]
        return {
            "approval": {**self.snapshot, "notices": schedule},
            "audience": self.audience.dumps(),
            "excludes": "".join(f"\n{name}" for name in excluded) + "\n" if excluded else "",
            "notice_due_at": schedule[0]["at"] if schedule else None,
        }


@dataclass(frozen=True, kw_only=True)
class Approval:
    """How a gate is answered.

    Args:
        title: what is asked, a text or a callable of the context; default: the gate's name.
        show: labels and values to show, a mapping or a callable of the context; default: the run's input.
        permission: ``"app_label.codename"`` that a decider must hold.
        groups: names of groups; a decider must be in one of them (or one of ``users``).
        users: usernames, or a callable of the context that returns them.
        exclude_requester: whether the user who started the run may not decide, superuser or not.
        exclude_deciders_of: names of gates; who has decided one of them in the same run may not decide, superuser or
            not.
        form: a Django ``Form`` class whose cleaned data becomes the decision's ``data``. Only in a declaration: in a
            workflow's ``gates``, or of a builder workflow's gate.
        require_reason: ``"reject"``, ``"always"`` or ``"never"``. Blanks are no reason.
        quorum: how many must approve, a whole number or a callable of the context; one rejection rejects.
        on_timeout: what a passed deadline does: ``"fail"`` as a signal's timeout, ``"approve"`` or ``"reject"``.
        on_reject: ``"continue"`` hands the decision to the body; ``"fail"`` raises ``GateRejected`` there.
        remind: when to remind those who are asked: durations from the opening, or moments.
        escalate: when to ask more people, and whom: a pair such as ``("12h", Candidates(groups=["directors"]))``, or
            several.
        anonymous_links: whether a link made for one user opens the gate without a login.

    Raises:
        DefinitionError: an argument is not of its kind.
        DurationError: a time of ``remind`` or ``escalate`` is none.
    """

    title: str | Callable[[Any], str] | None = None
    show: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    permission: str | None = None
    groups: Collection[str] = ()
    users: Users = ()
    exclude_requester: bool = False
    exclude_deciders_of: Collection[str] = ()
    form: type[BaseForm] | None = None
    require_reason: str = "reject"
    quorum: int | Callable[[Any], int] = 1
    on_timeout: str = "fail"
    on_reject: str = "continue"
    remind: Collection[Any] = ()
    escalate: Collection[Any] = ()
    anonymous_links: bool = False

    def __post_init__(self) -> None:
        _check_flag("exclude_requester", self.exclude_requester)
        _check_flag("anonymous_links", self.anonymous_links)
        _check_choice("require_reason", self.require_reason, REASONS)
        _check_choice("on_timeout", self.on_timeout, TIMEOUTS)
        _check_choice("on_reject", self.on_reject, REJECTIONS)
        check_people("Approval", self.permission, self.groups, self.users)
        check_names("exclude_deciders_of", self.exclude_deciders_of)
        for name in self.exclude_deciders_of:
            check_name(name, "Approval(exclude_deciders_of=...)")
        if self.show is not None and not callable(self.show) and not isinstance(self.show, Mapping):
            raise DefinitionError(f"Approval(show={self.show!r}): give labels and values as a mapping, or a callable.")
        if not (self.title is None or callable(self.title) or isinstance(self.title, str | Promise)):
            raise DefinitionError(f"Approval(title={self.title!r}): give a text, or a callable of the context.")
        if self.form is not None:
            _check_form(self.form)
        if not callable(self.quorum):
            _check_quorum(self.quorum)
        _check_times(self.remind)
        _check_times([delay for delay, _candidates in self.escalations], "escalate")

    @property
    def escalations(self) -> tuple[tuple[Any, Candidates], ...]:
        """The pairs of ``escalate``, which may be a single one."""
        given = self.escalate
        if isinstance(given, list | tuple):
            pairs = [given] if len(given) == 2 and isinstance(given[1], Candidates) else given
            if all(isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[1], Candidates) for one in pairs):
                return tuple((delay, candidates) for delay, candidates in pairs)
        raise DefinitionError(
            f'Approval(escalate={given!r}): give a time and whom to add, as ("12h", Candidates(groups=["directors"])), '
            f"or several such pairs."
        )

    def bound(self, bind: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> dict[str, Any]:
        """Return those arguments that hold callables of the context, with ``bind`` of each in its place."""
        named = {name: getattr(self, name) for name in ("title", "show", "users", "quorum")}
        changed: dict[str, Any] = {name: bind(value) for name, value in named.items() if callable(value)}
        if any(callable(candidates.users) for _delay, candidates in self.escalations):
            changed["escalate"] = tuple(
                (delay, replace(them, users=bind(them.users)) if callable(them.users) else them)
                for delay, them in self.escalations
            )
        return changed

    def ask(self, name: str, ctx: Any) -> Question:
        """Evaluate this approval for the run of ``ctx``; ``name`` is the gate's.

        Raises:
            DefinitionError: a callable returned something that cannot be used, or the gate excludes the requester of a
                run that has none.
        """
        if self.exclude_requester and not ctx.has_requester:
            raise DefinitionError(
                f'Gate "{name}" excludes the requester, but run {ctx.run_id} has none: start it with requester=user.'
            )
        shown = self._shown(ctx)
        snapshot = {
            "title": _visible(str(_given(self.title, ctx) or "")) or name,
            "show": shown,
            "labels": list(shown),
            "exclude_requester": self.exclude_requester,
            "exclude_deciders_of": sorted(set(self.exclude_deciders_of)),
            "form": self.form.__qualname__ if self.form else "",
            "require_reason": self.require_reason,
            "quorum": _check_quorum(_given(self.quorum, ctx)),
            "on_timeout": self.on_timeout,
            "on_reject": self.on_reject,
            "anonymous_links": self.anonymous_links,
        }
        reminders = [(REMIND, delay, None) for delay in self.remind]
        escalations = [(ESCALATE, delay, them.found(name, ctx)) for delay, them in self.escalations]
        audience = found(name, ctx, self.permission, self.groups, self.users)
        return Question(snapshot, audience, (*reminders, *escalations))

    def _shown(self, ctx: Any) -> dict[str, Any]:
        shown = _given(self.show, ctx)
        if shown is None:
            stored = ctx.stored_input
            shown = stored if isinstance(stored, Mapping) else {"input": stored}
        if not isinstance(shown, Mapping):
            raise DefinitionError(f"Approval(show=...) returned {shown!r}, not a mapping of labels and values.")
        return {str(label): value for label, value in shown.items()}


def _given(value: Any, ctx: Any) -> Any:
    return value(ctx) if callable(value) else value


def _visible(title: str) -> str:
    """Return a title of which something can be seen, or nothing: it is the text of links that people must find."""
    return title if any(letter.isprintable() and not letter.isspace() for letter in title) else ""


def _check_form(form: Any) -> None:
    if not (isinstance(form, type) and issubclass(form, BaseForm)):
        raise DefinitionError(f"Approval(form={form!r}): give a Django Form class.")
    try:
        inspect.signature(form).bind(data=None, prefix="")
    except TypeError as error:
        raise DefinitionError(f"Approval(form={form!r}): it is made with data= and prefix= alone; {error}.") from error
    fields = getattr(form, "base_fields", {}).items()
    if files := [name for name, field in fields if field.widget.needs_multipart_form]:
        raise DefinitionError(f"Approval(form={form!r}): files are not kept with an answer ({', '.join(files)}).")
    if rows := [name for name, field in fields if _surely_gives_rows(form, name, field)]:
        raise DefinitionError(
            f"Approval(form={form!r}): it gives model instances, which cannot be stored ({', '.join(rows)}). "
            f"Let clean_{rows[0]}() return the primary key, say."
        )


def _surely_gives_rows(form: Any, name: str, field: Any) -> bool:
    """Whether what comes of a field of a form is sure to be model instances: neither makes anything else of it."""
    if not isinstance(field, ModelChoiceField) or hasattr(form, f"clean_{name}"):
        return False
    plain = ModelMultipleChoiceField if isinstance(field, ModelMultipleChoiceField) else ModelChoiceField
    kept = all(getattr(type(field), verb) is getattr(plain, verb) for verb in ("clean", "to_python"))
    own = {
        verb
        for one in form.__mro__
        if one.__module__.partition(".")[0] not in ("django", "builtins")
        for verb in vars(one)
    }
    return kept and own.isdisjoint(_MAY_CONVERT)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise DefinitionError(f"Approval({name}={value!r}): it is True or False.")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DefinitionError(f"Approval({name}={value!r}): it is one of {', '.join(choices)}.")


def _check_quorum(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise DefinitionError(f"Approval(quorum={value!r}): it is a whole number of at least 1.")
    return value


def _check_times(times: Any, name: str = "remind") -> None:
    if isinstance(times, str) or not isinstance(times, list | tuple):
        raise DefinitionError(f'Approval({name}={times!r}): give a list of times, as ("4h", "20h").')
    for time in times:
        try:
            durations.due(time, _SOME_DAY)
        except DurationError as error:
            raise DurationError(f"Approval({name}=...): {error}") from None
