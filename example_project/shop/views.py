"""The one page of our own: ask for a purchase, and see what has become of those asked for."""

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.shortcuts import redirect, render

from django_finoflow import KeyConflict
from django_finoflow.models import Execution, Wait

from .forms import PurchaseForm
from .outcomes import standing
from .workflows import Purchase, purchase_approval


@login_required
def purchases(request):
    """Show the user's purchases and the form for the next; by POST start its run, in the user's name."""
    form = PurchaseForm(request.POST or None)
    if request.method == "POST" and form.is_valid() and _started(form, request.user):
        return redirect("purchases")
    mine = Execution.objects.filter(workflow_id=purchase_approval.id, requester=request.user).newest_first()
    gates = {gate.execution_id: gate for gate in Wait.objects.gates().open().filter(execution__in=mine)}
    rows = [(run, standing(run, gates[run.pk].name if run.pk in gates else None), gates.get(run.pk)) for run in mine]
    return render(request, "shop/purchases.html", {"form": form, "rows": rows})


@transaction.atomic
def _started(form, user):
    """Start the run, in a transaction as any other row would be made; return whether it was."""
    purchase = Purchase(employee=user.get_username(), **form.cleaned_data)
    try:
        purchase_approval.start(purchase, key=purchase.number, requester=user)
    except KeyConflict:
        form.add_error(None, "This form was sent already, with something else in it. Open the page anew.")
        return False
    return True
