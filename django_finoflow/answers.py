"""Typed answers: the form that a gate's declaration names, and what it makes of the data of an answer.

The form comes from the definition that is registered in this process under the run's workflow and version, by the
gate's name; never from anything that a row says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS
from django.forms import BaseForm
from django.utils.translation import gettext as _

from . import payloads, registry
from .exceptions import DecisionRefused, PayloadError, UnknownWorkflow
from .models import Wait

logger = logging.getLogger(__name__)


def form_for(gate: Wait) -> type[BaseForm] | None:
    """Return the form that an answer to this gate fills in, as the workflow declares it now; None: it has none.

    See ``check_known`` for a gate whose workflow this process does not know.
    """
    approval = _declared(gate)
    return None if approval is None else approval.form


def check_known(gate: Wait) -> None:
    """Refuse a gate that was opened with a form, where this process does not know the workflow that declares it."""
    if not (gate.approval or {}).get("form"):
        return
    try:
        registry.get(gate.execution.workflow_id, gate.execution.version)
    except UnknownWorkflow:
        text = _('"%(gate)s" is answered with a form of the workflow "%(workflow)s", which this site does not know.')
        names = {"gate": gate.title, "workflow": gate.execution.workflow_id}
        raise DecisionRefused(text % names, "invalid") from None


def cleaned(gate: Wait, data: Any) -> Any:
    """Return what of ``data`` is stored with an answer: what the gate's form makes of it; without a form itself.

    Raises:
        DecisionRefused: the form refuses it (``invalid``, with ``errors``), or is not known here.
        PayloadError: there is no form, and the data cannot be stored.
    """
    check_known(gate)
    form = form_for(gate)
    if form is None:
        payloads.dumps(data)
        return data
    if not isinstance(data, Mapping | None):
        raise _invalid({"": [_("Give the fields of the form by name.")]})
    filled = form(data=data or {})
    if not filled.is_valid():
        said = {name: [str(text) for text in texts] for name, texts in filled.errors.items()}
        raise _invalid({"" if name == NON_FIELD_ERRORS else name: texts for name, texts in said.items()})
    return _storable(gate, filled.cleaned_data)


def shape(gate: Wait) -> str:
    """Return what the gate's form asks for, for the token of its state: a page of another form is out of date."""
    form = form_for(gate)
    return "" if form is None else " ".join([form.__module__, form.__qualname__, *getattr(form, "base_fields", {})])


def _declared(gate: Wait) -> Any:
    try:
        return registry.get(gate.execution.workflow_id, gate.execution.version).gates.get(gate.name)
    except UnknownWorkflow:
        return None


def _storable(gate: Wait, cleaned_data: dict[str, Any]) -> Any:
    """Return it as it will be read back, or say of which field that cannot be."""
    errors = {}
    for name, value in cleaned_data.items():
        try:
            payloads.dumps(value)
        except PayloadError as error:
            errors[name] = [str(error) if isinstance(value, str) else _unkept(gate, name, error)]
    if errors:
        raise _invalid(errors)
    try:
        return payloads.roundtrip(cleaned_data)
    except PayloadError as error:  # each fits by itself, but not all together
        raise _invalid({"": [str(error)]}) from error


def _unkept(gate: Wait, name: str, error: PayloadError) -> str:
    """Return what a decider is told who cannot help it: the form gives what cannot be stored. The log says more."""
    logger.error(
        'The form of gate "%s" of workflow "%s" gives what cannot be stored, in its field "%s": %s',
        gate.name,
        gate.execution.workflow_id,
        name,
        error,
    )
    return str(_("This answer cannot be kept. It is no fault of yours: tell whoever looks after this site."))


def _invalid(errors: dict[str, list[str]]) -> DecisionRefused:
    said = " ".join(f"{name}: {' '.join(texts)}" if name else " ".join(texts) for name, texts in errors.items())
    return DecisionRefused(_("The answer is not valid. %(errors)s") % {"errors": said}, "invalid", errors)
