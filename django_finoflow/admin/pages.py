"""What the pages of runs and gates share: they are read-only, and their buttons lead to a page that asks.

The buttons come by way of django-admin-actions, whose own are links shown to every staff user. Ours are links, too,
but only to a page: its POST acts. They are shown to those only who may act, and their names begin with ``finoflow_``,
because that package names its routes after bare methods. Nothing here needs ``admin_actions`` in ``INSTALLED_APPS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from admin_actions.admin import ActionsModelAdmin
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

#: Refusals told one by one after a bulk action; a cookie does not hold thousands.
MOST_MESSAGES = 25


class Button(NamedTuple):
    """A link to the page that asks before something is done."""

    name: str
    title: str
    path: str


def on_change_form_too(**options: Any) -> Any:
    """Declare an admin action, as ``admin.action`` does, and from Django 6.1 on one for the change form, too."""
    locations = getattr(admin, "ActionLocation", None)
    if locations is not None:
        options["location"] = [locations.CHANGE_LIST, locations.CHANGE_FORM]
    return admin.action(**options)


class RecordAdmin(ActionsModelAdmin):
    """Pages that show rows of the engine. Nobody adds, changes or deletes one here, superusers included (rule A6).

    A subclass names its buttons in ``actions_row`` and ``actions_detail``, in ``bulk`` the views of no single row,
    such as bulk actions lead to, and says in ``may_press`` who may press which.
    """

    bulk: tuple[str, ...] = ()
    show_full_result_count = False
    list_per_page = 20  # what is on a screen: each row asks the engine which buttons it may have
    Media = None  # the package's style sheet can be served only where it is an installed app

    @property
    def media(self) -> forms.Media:
        """Django's own, and our style sheet."""
        return admin.ModelAdmin.media.fget(self) + forms.Media(css={"all": ["finoflow/admin.css"]})  # type: ignore[attr-defined]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def may_press(self, request: HttpRequest, name: str, obj: Any) -> bool:
        """Whether the user may do with ``obj``, as it is now, what the button ``name`` leads to."""
        raise NotImplementedError

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of no single row; the package adds those of the buttons."""
        pages = [(name, getattr(self, name)) for name in self.bulk]
        own = [path(f"{page.url_path}/", self.admin_site.admin_view(page), name=name) for name, page in pages]
        return own + super().get_urls()

    def get_list_display(self, request: HttpRequest) -> Sequence[Any]:
        """Put the buttons second: behind many columns they would be out of sight."""
        first, *others = admin.ModelAdmin.get_list_display(self, request)
        return (first, self._buttons_column(request), *others)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Offer an action on the change form (Django 6.1) only where the button is: it would lead to the same page."""
        if action_location is None:
            return super().get_actions(request)
        offered = super().get_actions(request, action_location=action_location)
        return {} if action_location.name == "CHANGE_FORM" and not self._buttons_here(request) else offered

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return admin.ModelAdmin.changelist_view(self, request, extra_context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Do without the package here: it would show every button, and fail for a key that is no number."""
        return admin.ModelAdmin.change_view(self, request, object_id, form_url, extra_context)

    def render_change_form(self, request: HttpRequest, context: dict, *args: Any, **kwargs: Any) -> HttpResponse:
        obj = kwargs["obj"]
        context["actions_list"] = self.buttons(request, self.actions_detail, obj)
        context.update(self.details(request, obj))
        return super().render_change_form(request, context, *args, **kwargs)

    def details(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return what the template of the change form shows beside the fields."""
        return {}

    def buttons(self, request: HttpRequest, names: Iterable[str], obj: Any) -> list[Button]:
        """Return those of the buttons that the user may press."""
        allowed = [name for name in names if self.may_press(request, name, obj)]
        return [
            Button(name, getattr(self, name).short_description, self.link(request, name, obj.pk)) for name in allowed
        ]

    def link(self, request: HttpRequest, name: str, *args: Any) -> str:
        """Return the address of one of our pages, with the filters of the list it will lead back to."""
        url = reverse(f"admin:{name}", args=args, current_app=self.admin_site.name)
        return add_preserved_filters({"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}, url)

    def back_to_list(self, request: HttpRequest) -> HttpResponseRedirect:
        """Return a redirect to the list, filtered as it was."""
        return HttpResponseRedirect(self.link(request, f"{self.opts.app_label}_{self.opts.model_name}_changelist"))

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """Return a page of our own within the admin's frame."""
        request.current_app = self.admin_site.name
        frame = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": title,
            "original": title,
            "has_view_permission": self.has_view_permission(request),
            "list_url": self.back_to_list(request).url,
            "preserved_filters": self.get_preserved_filters(request),
        }
        return TemplateResponse(request, template, {**frame, **context})

    def report(self, request: HttpRequest, done: int, sentence: Callable[[int], str], refusals: Sequence[str]) -> None:
        """Tell what came of a bulk action: how many were done, and of each that was refused why (rule A5)."""
        if done:
            self.message_user(request, sentence(done), messages.SUCCESS)
        for refusal in refusals[:MOST_MESSAGES]:
            self.message_user(request, refusal, messages.WARNING)
        if (more := len(refusals) - MOST_MESSAGES) > 0:
            text = ngettext("%(count)d more was refused.", "%(count)d more were refused.", more)
            self.message_user(request, text % {"count": more}, messages.WARNING)

    def _buttons_here(self, request: HttpRequest) -> list[Button]:
        match = request.resolver_match
        obj = self.get_object(request, match.kwargs.get("object_id", "")) if match else None
        return self.buttons(request, self.actions_detail, obj) if obj else []

    def _buttons_column(self, request: HttpRequest) -> Callable[[Model], SafeString]:
        @admin.display(description="")
        def finoflow_buttons(obj: Model) -> SafeString:
            buttons = self.buttons(request, self.actions_row, obj)
            pairs = ((button.path, button.title) for button in buttons)
            links = format_html_join(" ", '<a class="finoflow-button" href="{}">{}</a>', pairs)
            return format_html('<span class="finoflow-buttons">{}</span>', links)

        return finoflow_buttons


def refused(obj: Any, error: Exception) -> str:
    """Return what a bulk action tells of one that was refused."""
    return _("%(object)s: %(why)s") % {"object": obj, "why": error}


def chosen_keys(request: HttpRequest) -> dict[int, str]:
    """Return what a page of several rows sends: the keys of those it showed, each with the token it showed, if any."""
    entries = [entry.partition(":") for entry in request.POST.get("chosen", "").split()]
    return {int(key): token for key, _colon, token in entries if key.isascii() and key.isdigit() and len(key) < 19}
