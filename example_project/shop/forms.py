"""What an employee fills in to ask for a purchase."""

from django import forms
from django.utils.crypto import get_random_string

NUMBER = r"^P-[0-9]{6}$"  # of what visitors ask for; the numbers in the file are shorter


def new_number():
    return f"P-{get_random_string(6, '0123456789')}"


class PurchaseForm(forms.Form):
    """The number is made with the page and becomes the run's key: a double click asks for one purchase, not two."""

    number = forms.RegexField(NUMBER, initial=new_number, widget=forms.HiddenInput)
    item = forms.CharField(label="What", max_length=80, help_text="As you would say it: “a laptop”.")
    eur = forms.DecimalField(label="Price in EUR", min_value=1, max_digits=9, decimal_places=2)
