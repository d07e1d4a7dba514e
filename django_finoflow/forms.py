"""The form under a gate, for the admin, the inbox and links alike: why, the gate's own form, and what was seen.

    form = DecisionForm(gate, request.user, request.POST, approved=True, channel="inbox")
    decision = form.decide()

``decide`` hands everything to ``api.decide``, which alone judges. It returns the ``Decision``; or None, and then either
``form.refusal`` says why nobody can answer this gate now (the page tells it), or the fields have errors (the page shows
the form again). Without data the form is for showing.

A template needs three things inside its ``<form>``: ``{% csrf_token %}``, ``{{ form.hidden }}`` (what was seen), and
each of ``{{ form.visible }}`` as ``{{ field.as_field_group }}``. ``form.complaints`` is the summary of errors at the
top: pairs of a field's id, for a link, and a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.http import QueryDict
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from . import api, decisions
from .exceptions import DecisionRefused, PayloadError
from .models import Decision, Wait
from .recipients import named, who_can_answer

#: What the fields of a gate's own form are called in a page: ``answer-amount``, lest one of them be called "reason".
PREFIX = "answer"
LONGEST_REASON = 4000
MOST_SUGGESTED = 20
NOBODY = gettext_lazy("Nobody of that name may decide it.")
NOT_YOURS = ("not-eligible", "excluded")


class DecisionForm(forms.Form):
    """What a person fills in to answer one gate.

    Args:
        gate: the gate, with its ``execution``.
        user: who decides.
        data: what was sent: ``request.POST``, or a mapping with ``reason``, ``seen``, ``override`` and fields of the
            gate's own form as ``answer-<field>``. None: nothing yet.
        approved: yes or no, if the page or the pressed button has said it.
        channel: where the answer comes from, for the record.
        one_button: whether the page has a button for ``approved`` alone, and not one for each answer.
        overriding: whether a holder of ``finoflow.override_gate`` who may not decide otherwise is offered to override.
            By a link nobody is.
    """

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=LONGEST_REASON,
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    override = forms.BooleanField(
        label=gettext_lazy("Override the rules of this gate"),
        help_text=gettext_lazy(
            "It decides at once, whatever the quorum and whoever else is asked, needs a reason, and is marked as such."
        ),
        required=False,
    )

    def __init__(
        self,
        gate: Wait,
        user: Any,
        data: Mapping[str, Any] | None = None,
        *,
        approved: bool | None = None,
        channel: str = "inbox",
        one_button: bool = False,
        overriding: bool = True,
    ):
        super().__init__(data)
        self.gate, self.user, self.approved, self.channel = gate, user, approved, channel
        #: Why nobody can answer this gate as it was tried; None when only fields are wrong, or nothing was tried.
        self.refusal: DecisionRefused | None = None
        #: The gate's own form, or None.
        self.answer: forms.BaseForm | None = None
        if (kind := decisions.form_for(gate)) is not None:
            self.answer = kind(data=data, prefix=PREFIX)
        if not overriding or not decisions.may_override(user) or decisions.is_asked(gate, user):
            del self.fields["override"]
        self.fields["reason"].help_text = self._when_needed((approved,) if one_button else (True, False))

    def decide(self) -> Decision | None:
        """Decide the gate with what was sent; nothing is checked here that ``api.decide`` checks.

        Returns:
            The decision. None: nothing was written, and ``refusal`` or the fields' errors say why.

        Raises:
            RunNotFound: the run was deleted meanwhile.
        """
        if not self.is_valid():
            return None
        try:
            return api.decide(
                self.gate.execution.run_id,
                self.gate.name,
                user=self.user,
                approved=self.approved,  # type: ignore[arg-type]
                reason=self.cleaned_data["reason"],
                data=None if self.answer is None else unprefixed(self.data),
                channel=self.channel,
                wait=self.gate,
                seen=str(self.data.get("seen", "")),
                override=self.cleaned_data.get("override", False),
            )
        except PayloadError as error:
            self.add_error("reason", str(error))
        except DecisionRefused as refusal:
            self._take(refusal)
        return None

    @property
    def hidden(self) -> SafeString:
        """The hidden field with the token of the gate's state, as the page shows it now, and those of its own form."""
        token = format_html('<input type="hidden" name="seen" value="{}">', decisions.token(self.gate))
        own = self.answer.hidden_fields() if self.answer else ()
        return token + format_html_join("", "{}", ((field,) for field in own))

    @property
    def visible(self) -> list[forms.BoundField]:
        """The fields to show, the gate's own first."""
        return [*(self.answer.visible_fields() if self.answer else ()), *self]

    @property
    def complaints(self) -> list[tuple[str, str]]:
        """What is wrong with the fields: the id of the field (empty: of none) and a sentence that names it."""
        return [*(complaints_of(self.answer) if self.answer else ()), *complaints_of(self)]

    @property
    def media(self) -> forms.Media:
        """The scripts and styles of the widgets, the host's own included."""
        own = super().media
        return own if self.answer is None else own + self.answer.media

    def _take(self, refusal: DecisionRefused) -> None:
        """Show a refusal where it belongs: at a field, or for the whole gate."""
        if refusal.code == "reason-required":
            self.add_error("reason", str(refusal))
        elif refusal.code in NOT_YOURS and "override" in self.fields:
            self.add_error("override", str(refusal))
        elif refusal.code == "invalid" and self.answer is not None:
            if not self.answer.errors:  # what the page took, the door did not
                self._add_errors(self.answer, refusal)
        else:
            self.refusal = refusal

    @staticmethod
    def _add_errors(form: forms.BaseForm, refusal: DecisionRefused) -> None:
        for name, texts in (refusal.errors or {"": [str(refusal)]}).items():
            for text in texts:
                form.add_error(name if name in form.fields else None, text)

    def _when_needed(self, answers: tuple[Any, ...]) -> str:
        """Return when a reason is needed, for the answers that the page has buttons for."""
        needed = [decisions.needs_reason(self.gate, approved) for approved in answers]
        if all(needed):
            return _("Needed.")
        return _("Needed to reject.") if any(needed) else ""


class DelegateForm(forms.Form):
    """To whom a gate is handed over. Use it as ``DecisionForm``, with ``delegate`` in place of ``decide``.

    Args:
        gate: the gate, with its ``execution``.
        user: who hands it over.
        data: what was sent, with ``to`` (a username) and ``note``.
    """

    to = forms.CharField(
        label=gettext_lazy("Hand it over to"),
        help_text=gettext_lazy("The username of somebody who may decide it."),
        widget=forms.TextInput(attrs={"list": "finoflow-people", "autocomplete": "off", "autocapitalize": "none"}),
    )
    note = forms.CharField(label=gettext_lazy("Note"), required=False, max_length=LONGEST_REASON)

    def __init__(self, gate: Wait, user: Any, data: Mapping[str, Any] | None = None):
        super().__init__(data)
        self.gate, self.user = gate, user

    def delegate(self) -> Wait | None:
        """Hand the gate over.

        Returns:
            The gate as it is then. None: nothing was written, and the fields' errors say why.

        Raises:
            RunNotFound: the run was deleted meanwhile.
            DecisionRefused: the user cannot hand it over.
        """
        if (refusal := decisions.why_not(self.gate, self.user)) is not None:
            raise refusal
        if not self.is_valid():
            return None
        if (to := named(self.cleaned_data["to"])) is None:
            # As for somebody who may not decide it, so that the page does not tell who has an account.
            self.add_error("to", NOBODY)
            return None
        if to.pk == self.user.pk:
            self.add_error("to", _("That is you. To work on it yourself, claim it."))
            return None
        run_id, gate, note = self.gate.execution.run_id, self.gate, self.cleaned_data["note"]
        try:
            return api.delegate_gate(run_id, gate.name, user=self.user, to=to, wait=gate, note=note)
        except PayloadError as error:
            self.add_error("note", str(error))
        except DecisionRefused as refused:
            if refused.code not in (*NOT_YOURS, "already-answered"):
                raise
            self.add_error("to", NOBODY if refused.code == "not-eligible" else str(refused))
        return None

    @property
    def complaints(self) -> list[tuple[str, str]]:
        """As those of ``DecisionForm``."""
        return complaints_of(self)

    @property
    def suggestions(self) -> list[str]:
        """Usernames of people who may decide it, the first where they are many; for a datalist "finoflow-people"."""
        found = who_can_answer(self.gate, MOST_SUGGESTED + 1)
        return [user.get_username() for user in found if user.pk != self.user.pk][:MOST_SUGGESTED]


def complaints_of(form: forms.BaseForm) -> list[tuple[str, str]]:
    """Return what is wrong with the fields of a form: the id of each (empty: of none) and a sentence that names it."""
    fields = {name: None if name == NON_FIELD_ERRORS else form[name] for name in form.errors}
    return [
        (field.id_for_label, f"{field.label}: {text}") if (field := fields[name]) else ("", str(text))
        for name, texts in form.errors.items()
        for text in texts
    ]


def unprefixed(data: Mapping[str, Any]) -> QueryDict:
    """Return what was sent for the gate's own form, by its own names of fields and with every value of each."""
    found, start = QueryDict(mutable=True), f"{PREFIX}-"
    for name in data:
        if name.startswith(start):
            several = data.getlist(name) if hasattr(data, "getlist") else [data[name]]
            found.setlist(name.removeprefix(start), several)
    return found


def repeats(gate: Wait, user: Any, approved: bool) -> bool:
    """Whether ``user`` has given this very answer to this gate before: the second half of a double click."""
    return any(made.user_id == user.pk and made.approved == approved for made in gate.decisions.all())
