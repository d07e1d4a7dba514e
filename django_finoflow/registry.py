"""The workflows of this process, by id and version.

A definition registers itself when it is made; each installed app's ``workflows`` module is imported when Django has
loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exceptions import DefinitionError, UnknownWorkflow

if TYPE_CHECKING:
    from .workflow import Definition

_definitions: dict[tuple[str, int], Definition] = {}


def register(definition: Definition) -> None:
    """Make ``definition`` known.

    Raises:
        DefinitionError: another definition has its id and version.
    """
    place = (definition.id, definition.version)
    if place in _definitions:
        raise DefinitionError(
            f'Workflow "{definition.id}" version {definition.version} is defined twice: '
            f"give the second another id or version."
        )
    _definitions[place] = definition


def unregister(workflow_id: str, version: int | None = None) -> None:
    """Forget a workflow, of one version or of all. For tests."""
    for place in [p for p in _definitions if p[0] == workflow_id and version in (None, p[1])]:
        del _definitions[place]


def known() -> list[tuple[str, int]]:
    """Return (id, version) of every registered workflow."""
    return sorted(_definitions)


def all_definitions() -> list[Definition]:
    """Return every registered workflow."""
    return list(_definitions.values())


def consumes_nothing(workflow_id: str, version: int) -> bool:
    """Whether a workflow declares its signals and keeps them to the end; False if it is not registered here."""
    definition = _definitions.get((workflow_id, version))
    return definition is not None and definition.declared_signals is not None


def get(workflow_id: str, version: int | None = None) -> Definition:
    """Return a workflow, the newest version if none is named.

    Raises:
        UnknownWorkflow: nothing of that id and version is registered here.
    """
    versions = [v for w, v in _definitions if w == workflow_id]
    wanted = version if version is not None else max(versions, default=None)
    if wanted in versions:
        return _definitions[workflow_id, wanted]
    which = f'Workflow "{workflow_id}"' + (f" version {version}" if version is not None and versions else "")
    known_ids = ", ".join(sorted({w for w, _ in _definitions})) or "none"
    raise UnknownWorkflow(
        f"{which} is not registered in this process (known: {known_ids}). Is it in an app's workflows.py?"
    )
