"""A gate's form (A9): declared with the workflow, validated when the answer comes, its cleaned data in the decision."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from django import forms
from django.contrib.auth import get_user_model
from django.http import QueryDict
from django.utils.safestring import mark_safe

from django_finoflow import Approval, DefinitionError, PayloadError, Workflow, decide, decisions, registry
from django_finoflow.models import Decision
from tests.gates import OVERRIDE, deciders, gate_of, person, refused
from tests.making import row

pytestmark = pytest.mark.django_db


class ExpenseForm(forms.Form):
    amount = forms.DecimalField(min_value=0, max_digits=12, decimal_places=2)
    account = forms.ChoiceField(choices=[("travel", "Travel"), ("food", "Food")])
    note = forms.CharField(required=False, max_length=50)
    paid_on = forms.DateField(required=False)
    tags = forms.MultipleChoiceField(required=False, choices=[("a", "A"), ("b", "B")])

    def clean(self):
        if self.cleaned_data.get("account") == "food" and self.cleaned_data.get("amount", 0) > 100:
            raise forms.ValidationError("No such meals.")


GOOD = {"amount": "12.50", "account": "travel"}


@pytest.fixture
def typed(make):
    """A function that parks a run at a gate with a form, and returns the workflow and the run's id."""

    def typed(form=ExpenseForm, **approval):
        @make(gates={"pay": Approval(form=form, **approval)})
        def flow(ctx, input):
            return ctx.wait_for_approval("pay")

        return flow, flow.run().run_id

    return typed


@pytest.fixture
def boss():
    return deciders(1)[0]


def test_a9_the_forms_cleaned_data_is_the_decisions_data(typed, boss):
    flow, run_id = typed()
    assert decisions.form_for(gate_of(run_id)) is ExpenseForm
    made = decide(run_id, "pay", user=boss, approved=True, data={**GOOD, "paid_on": "2030-01-02", "tags": ["b", "a"]})
    kept = {
        "amount": Decimal("12.50"),
        "account": "travel",
        "note": "",
        "paid_on": date(2030, 1, 2),
        "tags": ["b", "a"],
    }
    assert made.data == Decision.objects.get().data == flow.resume(run_id).result["data"] == kept


def test_a9_data_may_come_as_a_page_posts_it(typed, boss):
    _, run_id = typed()
    posted = QueryDict("amount=7&account=food&tags=a&tags=b&approve=1")
    assert decide(run_id, "pay", user=boss, approved=True, data=posted).data["tags"] == ["a", "b"]


def test_a9_what_the_form_refuses_is_told_by_field(typed, boss):
    _, run_id = typed()
    refusal = refused(decide, run_id, "pay", user=boss, approved=True, data={"amount": "-1", "account": "car"})
    assert refusal.code == "invalid"
    assert set(refusal.errors) == {"amount", "account"}
    assert all(isinstance(text, str) for texts in refusal.errors.values() for text in texts)
    whole = refused(decide, run_id, "pay", user=boss, approved=True, data={"amount": 200, "account": "food"})
    assert whole.errors == {"": ["No such meals."]}


@pytest.mark.parametrize("data", [None, {}, {"amount": "1"}], ids=repr)
def test_a9_missing_fields_are_refused_for_approvals_and_rejections_alike(typed, boss, data):
    _, run_id = typed(require_reason="never")
    for approved in (True, False):
        refusal = refused(decide, run_id, "pay", user=boss, approved=approved, data=data)
        assert (refusal.code, "account" in refusal.errors) == ("invalid", True)


HOSTILE = {
    "no number": {"amount": "NaN"},
    "a Decimal that is none": {"amount": Decimal("NaN")},
    "infinity": {"amount": "Infinity"},
    "too many digits": {"amount": "9" * 40},
    "an exponent of doom": {"amount": "1e999999"},
    "a list": {"amount": ["1", "2"]},
    "a dict": {"account": {"travel": 1}},
    "too long": {"note": "x" * 5000},
    "nul": {"note": "a\0b"},
    "no date": {"paid_on": "2030-02-31"},
    "an unknown choice": {"tags": ["a", "<script>"]},
    "not a list of choices": {"tags": 5},
}


@pytest.mark.parametrize("wrong", HOSTILE)
def test_a9_hostile_data_is_refused_as_invalid_with_the_field_named(typed, boss, wrong):
    _, run_id = typed()
    refusal = refused(decide, run_id, "pay", user=boss, approved=True, data={**GOOD, **HOSTILE[wrong]})
    assert (refusal.code, list(refusal.errors)) == ("invalid", list(HOSTILE[wrong]))


@pytest.mark.parametrize("data", ["amount=1", [("amount", 1)], 5, True], ids=repr)
def test_a9_data_that_names_no_fields_is_refused(typed, boss, data):
    _, run_id = typed()
    refusal = refused(decide, run_id, "pay", user=boss, approved=True, data=data)
    assert (refusal.code, list(refusal.errors)) == ("invalid", [""])


def test_a9_markup_is_kept_as_the_text_that_it_is_and_unknown_fields_are_not_kept(typed, boss):
    _, run_id = typed()
    nasty = "<script>alert(1)</script>&"
    made = decide(run_id, "pay", user=boss, approved=True, data={**GOOD, "note": mark_safe(nasty), "is_admin": "1"})
    assert "is_admin" not in made.data
    assert made.data["note"] == nasty
    assert type(made.data["note"]) is str


class AnyText(forms.Form):
    text = forms.CharField(strip=False)
    more = forms.CharField(required=False)


def test_a9_what_cannot_be_stored_is_refused_as_invalid(typed, boss, settings):
    settings.FINOFLOW = {"MAX_PAYLOAD_BYTES": 1000}
    _, run_id = typed(AnyText)
    assert refused(decide, run_id, "pay", user=boss, approved=True, data={"text": "\ud800"}).errors.keys() == {"text"}
    huge = refused(decide, run_id, "pay", user=boss, approved=True, data={"text": "x" * 2000})
    assert huge.errors.keys() == {"text"}
    both = refused(decide, run_id, "pay", user=boss, approved=True, data={"text": "x" * 700, "more": "x" * 700})
    assert both.errors.keys() == {""}


class Pick(forms.Form):
    user = forms.ModelChoiceField(get_user_model().objects.all())


class PickById(Pick):
    def clean_user(self):
        return self.cleaned_data["user"].pk


class PickBoss(Pick):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.fields["user"].queryset = get_user_model().objects.filter(is_active=True)


class PickSeveral(forms.Form):
    users = forms.ModelMultipleChoiceField(get_user_model().objects.all(), required=False)


class Key(forms.ModelChoiceField):
    def clean(self, value):
        return super().clean(value).pk


class PickByField(forms.Form):
    user = Key(get_user_model().objects.all())


class Profile(forms.ModelForm):
    class Meta:
        model = Decision
        fields = ("user",)


@pytest.mark.parametrize("form", [Pick, PickSeveral, Profile])
def test_a9_a_form_that_is_sure_to_give_rows_is_refused_when_it_is_declared(form):
    with pytest.raises(DefinitionError, match="primary key"):
        Approval(form=form)


@pytest.mark.parametrize("form", [PickById, PickBoss, PickByField])
def test_a9_a_form_that_may_make_plain_data_of_rows_is_not(form):
    assert Approval(form=form).form is form


def test_a9_rows_are_refused_by_field_in_words_for_the_decider_with_the_developers_in_the_log(typed, boss, caplog):
    _, run_id = typed(PickBoss)
    refusal = refused(decide, run_id, "pay", user=boss, approved=True, data={"user": str(boss.pk)})
    assert (refusal.code, list(refusal.errors)) == ("invalid", ["user"])
    assert refusal.errors["user"][0].startswith("This answer cannot be kept.")
    assert "User" not in str(refusal)
    [record] = [one for one in caplog.records if one.name == "django_finoflow.answers"]
    assert 'in its field "user"' in record.getMessage()
    assert "User" in record.getMessage()


def test_a9_a_field_that_gives_a_row_is_kept_where_the_form_gives_plain_data(typed, boss):
    _, run_id = typed(PickById)
    assert decide(run_id, "pay", user=boss, approved=True, data={"user": str(boss.pk)}).data == {"user": boss.pk}
    assert refused(decide, typed(PickById)[1], "pay", user=boss, approved=True, data={"user": 0}).code == "invalid"


def test_a9_a_gate_without_a_form_keeps_its_data_as_it_is(make, boss):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow")
    run_id = flow.run().run_id
    assert decisions.form_for(gate_of(run_id)) is None
    with pytest.raises(PayloadError):
        decide(run_id, "pay", user=boss, approved=True, data={"x": Decimal("NaN")})
    assert decide(run_id, "pay", user=boss, approved=True, data=(1, {2})).data == (1, {2})


def test_a9_the_form_is_asked_after_who_and_why(typed):
    _, run_id = typed(groups=["finance"], require_reason="always")
    [stranger] = deciders(1)
    member = person("member", groups=("finance",))
    assert refused(decide, run_id, "pay", user=stranger, approved=True, data={}).code == "not-eligible"
    assert refused(decide, run_id, "pay", user=member, approved=True, data={}).code == "reason-required"


def test_a9_an_override_fills_in_the_form_too(typed):
    _, run_id = typed()
    auditor = person("auditor", OVERRIDE)
    forced = {"user": auditor, "approved": True, "reason": "x", "override": True}
    assert refused(decide, run_id, "pay", **forced, data={}).code == "invalid"
    assert decide(run_id, "pay", **forced, data=GOOD).data["account"] == "travel"


def test_a9_each_vote_of_a_quorum_fills_in_the_form_and_the_last_ones_data_goes_on(typed):
    flow, run_id = typed(quorum=2)
    for amount, user in zip((1, 2), deciders(2), strict=True):
        decide(run_id, "pay", user=user, approved=True, data={**GOOD, "amount": amount})
    assert flow.resume(run_id).result["data"]["amount"] == 2
    assert [made.data["amount"] for made in Decision.objects.order_by("pk")] == [1, 2]


# -- declared, never named by a row ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [ExpenseForm(), forms.formset_factory(ExpenseForm), "ExpenseForm", dict, 5], ids=repr)
def test_a9_a_form_is_a_form_class(form):
    with pytest.raises(DefinitionError, match="form"):
        Approval(form=form)


def test_a9_a_form_is_only_declared_and_refused_in_the_body(make):
    @make
    def flow(ctx, input):
        with pytest.raises(DefinitionError, match="gates="):
            ctx.wait_for_approval("pay", form=ExpenseForm)

    assert flow.run().state.steps == ()


def test_a9_a_builders_gate_has_its_form(boss):
    flow = Workflow("built-form").wait_for("pay", approval=Approval(form=ExpenseForm))
    flow.step("end", lambda ctx: ctx.signals["pay"]["data"]["amount"])
    try:
        run_id = flow.run().run_id
        assert refused(decide, run_id, "pay", user=boss, approved=True).code == "invalid"
        decide(run_id, "pay", user=boss, approved=True, data=GOOD)
        assert flow.resume(run_id).result == Decimal("12.50")
    finally:
        registry.unregister("built-form")


def test_a9_the_form_of_the_present_deployment_is_the_one_that_asks(typed, make, boss):
    flow, run_id = typed()
    seen = decisions.token(gate_of(run_id))
    make.redeploy(flow, flow.body, gates={"pay": Approval(form=AnyText)})
    # A page of the old form decides nothing; it is shown again with the new one.
    assert refused(decide, run_id, "pay", user=boss, approved=True, data=GOOD, seen=seen).code == "changed"
    assert refused(decide, run_id, "pay", user=boss, approved=True, data=GOOD).errors.keys() == {"text"}
    assert decide(run_id, "pay", user=boss, approved=True, data={"text": "so be it"}).data["text"] == "so be it"


def test_a9_a_form_that_is_declared_since_is_asked_for_and_one_that_is_gone_is_not(make, boss):
    plain = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="plain")
    run_id = plain.run().run_id
    filled = make.redeploy(plain, plain.body, gates={"pay": Approval(form=AnyText)})
    assert refused(decide, run_id, "pay", user=boss, approved=True).code == "invalid"
    later = filled.run().run_id
    make.redeploy(filled, plain.body)
    assert decide(later, "pay", user=boss, approved=True, data="free").data == "free"


def test_a9_where_the_workflow_is_not_known_a_gate_with_a_form_takes_no_answer(typed, make, boss):
    flow, run_id = typed()
    plain = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="plain").run().run_id
    registry.unregister(flow.id)
    gate = gate_of(run_id)
    assert decisions.form_for(gate) is None
    assert decisions.why_not(gate, boss).code == "invalid"
    refusal = refused(decide, run_id, "pay", user=boss, approved=True, data=GOOD)
    assert (refusal.code, flow.id in str(refusal)) == ("invalid", True)
    registry.unregister("plain")
    assert decide(plain, "pay", user=boss, approved=True)


def test_a9_nothing_that_a_row_says_is_imported_or_called(typed, boss):
    _, run_id = typed()
    gate = gate_of(run_id)
    gate.approval = {**gate.approval, "form": "os.system"}
    gate.save(update_fields=["approval"])
    assert decisions.form_for(gate) is ExpenseForm
    assert decide(run_id, "pay", user=boss, approved=True, data=GOOD)
    assert row(run_id).status == "running"
