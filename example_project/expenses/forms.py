"""What people fill in when they answer: an ordinary Django form, which a gate names as its ``form``."""

from django import forms
from django.utils import timezone

from .policy import COST_CENTRES


class BookingForm(forms.Form):
    """Where a cost belongs in the books. Both fields are filled in beforehand, so that a rejection is no work."""

    cost_centre = forms.ChoiceField(choices=[(number, f"{number} {name}") for number, name in COST_CENTRES.items()])
    booked_on = forms.DateField(
        label="Booking date", initial=timezone.localdate, widget=forms.DateInput({"type": "date"}, format="%Y-%m-%d")
    )

    def clean_booked_on(self):
        booked_on = self.cleaned_data["booked_on"]
        if booked_on > timezone.localdate():
            raise forms.ValidationError("That day is yet to come.")
        return booked_on
