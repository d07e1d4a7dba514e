"""Who may decide a gate: the people that an ``Approval`` names, and those whom an escalation adds to them.

``Candidates`` is what a declaration says; ``Audience`` is what a gate keeps of it, with all names known, as one
canonical text: gates of one audience are found by one comparison.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from .exceptions import DefinitionError
from .names import holds_control

DEFAULT_PERMISSION = "finoflow.decide_wait"

LONGEST_NAME = 255  # characters of a permission, and of a group's or user's name

Users = Collection[str] | Callable[[Any], Collection[str]]


class Audience(NamedTuple):
    """Who may decide: holders of ``permission`` who are in one of ``groups`` or ``users``, where those are given.

    Or who are in one of ``alternatives``, each likewise.
    """

    permission: str = ""
    groups: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    alternatives: tuple[Audience, ...] = ()

    def dumps(self) -> str:
        """Return the canonical text that is stored with the wait."""
        return json.dumps(self.plain(), separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A digest of that text: gates of one audience have the same, and an index can hold it."""
        return hashlib.sha256(self.dumps().encode()).hexdigest()

    def plain(self) -> list[Any]:
        """Return the same as plain data; a fourth element only where there are alternatives."""
        main: list[Any] = [self.permission, sorted(self.groups), sorted(self.users)]
        return [*main, [other.plain() for other in self.alternatives]] if self.alternatives else main

    @classmethod
    def loads(cls, text: str) -> Audience:
        """Return the audience that ``dumps`` wrote as ``text``."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, plain: Any) -> Audience:
        """Return the audience that ``plain`` gave."""
        permission, groups, users, *others = plain
        return cls(permission, tuple(groups), tuple(users), tuple(map(cls.of, others[0] if others else ())))

    def widened(self, other: Audience) -> Audience:
        """Return this audience with ``other`` as one more alternative."""
        known = (self._replace(alternatives=()), *self.alternatives)
        return self if other in known else self._replace(alternatives=(*self.alternatives, other))

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
        if not user.is_active or user.pk is None:  # one who was never saved, or is deleted, is nobody
            return False
        if getattr(user, "is_superuser", False):
            return True
        return any(one._names(user, membership) for one in self.parts)

    @property
    def parts(self) -> tuple[Audience, ...]:
        """This audience and its alternatives, of each of which only what it says itself counts."""
        return (self, *self.alternatives)

    @property
    def names(self) -> list[tuple[str, str]]:
        """The groups and users that it names itself, each as ``(group, "")`` or ``("", user)``; nobody: two blanks."""
        return [(group, "") for group in self.groups] + [("", user) for user in self.users] or [("", "")]

    @property
    def needed_permission(self) -> str:
        """The permission that a decider must hold; where nobody is named at all, the general one."""
        return self.permission or ("" if self.groups or self.users else DEFAULT_PERMISSION)

    def _names(self, user: Any, membership: Collection[str] | None) -> bool:
        """Whether ``user`` is among those that this audience itself names, alternatives aside."""
        if self.needed_permission and not holds(user, self.needed_permission):
            return False
        if not (self.groups or self.users) or str(user.get_username()) in self.users:
            return True
        groups = self.membership(user) if membership is None else membership
        return any(group in groups for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """People who may decide: those whom an escalation adds to the ones that a gate has asked first.

    Args:
        permission: ``"app_label.codename"`` that they must hold.
        groups: names of groups; they must be in one of them (or one of ``users``).
        users: usernames, or a callable of the context that returns them.

    Raises:
        DefinitionError: an argument is not of its kind.
    """

    permission: str | None = None
    groups: Collection[str] = ()
    users: Users = ()

    def __post_init__(self) -> None:
        check_people("Candidates", self.permission, self.groups, self.users)

    def found(self, name: str, ctx: Any) -> Audience:
        """Return them with all names known, for the run of ``ctx`` at its gate ``name``."""
        return found(name, ctx, self.permission, self.groups, self.users)


def check_user(what: str, user: Any) -> None:
    """Refuse what is no user at all, such as a username; ``what`` names the argument.

    Raises:
        TypeError: it is none.
    """
    if not (hasattr(user, "pk") and hasattr(user, "is_active") and hasattr(user, "get_username")):
        raise TypeError(f"{what} is a user object, such as request.user, not {user!r}.")


def holds(user: Any, permission: str) -> bool:
    """Whether ``user`` holds that permission; of a user model without permissions nobody does."""
    return hasattr(user, "has_perm") and bool(user.has_perm(permission))


def found(name: str, ctx: Any, permission: str | None, groups: Collection[str], users: Users) -> Audience:
    """Return the audience of these arguments of an ``Approval`` or ``Candidates``.

    Raises:
        DefinitionError: the callable returned no names, or nobody where no groups are given.
    """
    names = users(ctx) if callable(users) else users
    check_names("users", names)
    if callable(users) and not names and not groups:
        raise DefinitionError(f'Gate "{name}": users(ctx) found nobody, and no groups are given. Who shall decide?')
    return Audience(permission or "", tuple(groups), tuple(names))


def check_people(what: str, permission: Any, groups: Any, users: Any) -> None:
    """Refuse what cannot say who decides, in the arguments of a ``what``."""
    check_names("groups", groups, what)
    if not callable(users):
        check_names("users", users, what)
    if permission is not None and (str(permission).count(".") != 1 or _why_no_name(str(permission))):
        raise DefinitionError(f"{what}(permission={permission!r}): write it as 'app_label.codename'.")


def check_names(name: str, value: Any, what: str = "Approval") -> None:
    """Refuse what is no list of names."""
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(n, str) and n for n in value):
        raise DefinitionError(f"{what}({name}={value!r}): give a list of names.")
    for one in value:
        if problem := _why_no_name(one):
            raise DefinitionError(f"{what}({name}=...): {one!r} {problem}, so it is nobody's name.")


def _why_no_name(text: str) -> str:
    if len(text) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} characters"
    if text != text.strip():
        return "has blanks around it"  # an XML fixture would bring it back without them
    return "holds control characters" if holds_control(text) else ""
