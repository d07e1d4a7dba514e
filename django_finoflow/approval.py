"""What a gate asks, of whom, and what counts as an answer.

``Approval`` is the declaration on a workflow. When a run reaches the gate it is evaluated once, for that run, and the
outcome is stored with the wait (``Question``): what people see and who they are does not change under them while they
decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .exceptions import DefinitionError

DEFAULT_PERMISSION = "finoflow.decide_wait"
REASONS = ("reject", "always", "never")
REJECTIONS = ("continue", "fail")


class Audience(NamedTuple):
    """Who may decide: holders of ``permission`` who are in one of ``groups`` or ``users``, where those are given."""

    permission: str = ""
    groups: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def dumps(self) -> str:
        """Return the canonical text that is stored with the wait."""
        return json.dumps([self.permission, sorted(self.groups), sorted(self.users)], separators=(",", ":"))

    @classmethod
    def loads(cls, text: str) -> Audience:
        """Return the audience that ``dumps`` wrote as ``text``."""
        permission, groups, users = json.loads(text)
        return cls(permission, tuple(groups), tuple(users))

    @staticmethod
    def membership(user: Any) -> Collection[str]:
        """Return the names of the groups of ``user``, to ask ``admits`` about many gates with one query."""
        groups = getattr(user, "groups", None)
        return frozenset(groups.values_list("name", flat=True)) if user.pk and groups is not None else frozenset()

    def admits(self, user: Any, membership: Collection[str] | None = None) -> bool:
        """Whether ``user`` is in this audience (rule A2). Exclusions are not its matter.

        Args:
            user: a Django user.
            membership: the names of the user's groups, if they are known already.
        """
        if not user.is_active:
            return False
        if getattr(user, "is_superuser", False):
            return True
        named = bool(self.groups or self.users)
        permission = self.permission or ("" if named else DEFAULT_PERMISSION)
        if permission and not user.has_perm(permission):
            return False
        if not named or str(user.get_username()) in self.users:
            return True
        groups = self.membership(user) if membership is None else membership
        return any(group in groups for group in self.groups)


class Question(NamedTuple):
    """An approval as evaluated for one run, ready to be stored with its wait."""

    snapshot: dict[str, Any]
    audience: Audience


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
        require_reason: ``"reject"``, ``"always"`` or ``"never"``. Blanks are no reason.
        on_reject: ``"continue"`` hands the decision to the body; ``"fail"`` raises ``GateRejected`` there.

    Raises:
        DefinitionError: an argument is not of its kind.
    """

    title: str | Callable[[Any], str] | None = None
    show: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    permission: str | None = None
    groups: Collection[str] = ()
    users: Collection[str] | Callable[[Any], Collection[str]] = ()
    exclude_requester: bool = False
    require_reason: str = "reject"
    on_reject: str = "continue"

    def __post_init__(self) -> None:
        if not isinstance(self.exclude_requester, bool):
            raise DefinitionError(f"Approval(exclude_requester={self.exclude_requester!r}): it is True or False.")
        _check_choice("require_reason", self.require_reason, REASONS)
        _check_choice("on_reject", self.on_reject, REJECTIONS)
        _check_names("groups", self.groups)
        if not callable(self.users):
            _check_names("users", self.users)
        if self.permission is not None and str(self.permission).count(".") != 1:
            raise DefinitionError(f"Approval(permission={self.permission!r}): write it as 'app_label.codename'.")
        if self.show is not None and not callable(self.show) and not isinstance(self.show, Mapping):
            raise DefinitionError(f"Approval(show={self.show!r}): give labels and values as a mapping, or a callable.")

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
        users = self.users(ctx) if callable(self.users) else self.users
        _check_names("users", users)
        if callable(self.users) and not users and not self.groups:
            raise DefinitionError(f'Gate "{name}": users(ctx) found nobody, and no groups are given. Who shall decide?')
        snapshot = {
            "title": str(_given(self.title, ctx) or name),
            "show": self._shown(ctx),
            "exclude_requester": self.exclude_requester,
            "require_reason": self.require_reason,
            "on_reject": self.on_reject,
        }
        return Question(snapshot, Audience(self.permission or "", tuple(self.groups), tuple(users)))

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


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DefinitionError(f"Approval({name}={value!r}): it is one of {', '.join(choices)}.")


def _check_names(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(n, str) and n for n in value):
        raise DefinitionError(f"Approval({name}={value!r}): give a list of names.")
