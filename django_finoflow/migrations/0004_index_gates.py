"""Have the gates found that are there already. A migration of its own: the one before locks tables, this one only rows.

What an audience names is frozen here as it was then. Gates that older code opens afterwards are left to the workers.
"""

import hashlib
import json
import unicodedata
from collections import defaultdict

from django.db import migrations

MANY = 500  # rows written by one statement


def index(apps, schema_editor):
    """Give each gate the digest of its audience, and each audience its candidates."""
    alias = schema_editor.connection.alias
    gates = apps.get_model("finoflow", "Wait").objects.using(alias)
    Candidate = apps.get_model("finoflow", "Candidate")
    known = defaultdict(list)
    unknown = gates.filter(approval__isnull=False, audience_digest="").exclude(audience="")
    for pk, text in unknown.values_list("pk", "audience").iterator():
        known[text].append(pk)
    for text, keys in known.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        rows = [
            Candidate(digest=digest, permission=permission, group_name=group, user_name=user)
            for permission, group, user in candidates(json.loads(text))
        ]
        Candidate.objects.using(alias).bulk_create(rows)
        for start in range(0, len(keys), MANY):
            gates.filter(pk__in=keys[start : start + MANY]).update(audience_digest=digest)


def candidates(audience):
    """Yield permission, group and user of each candidate, but for what was taken then and can be nobody's name."""
    permission, groups, users, *others = audience
    needed = permission or ("" if groups or users else "finoflow.decide_wait")
    names = [(group, "") for group in groups] + [("", user) for user in users] or [("", "")]
    for group, user in names:
        if all(map(is_storable, (needed, group, user))):
            yield needed, group, user
    for other in others[0] if others else ():
        yield from candidates(other)


def is_storable(name):
    """Whether a name fits into its column."""
    return len(name) <= 255 and not any(unicodedata.category(c) in ("Cc", "Cs") for c in name)


class Migration(migrations.Migration):
    dependencies = [("finoflow", "0003_candidates")]

    operations = [migrations.RunPython(index, migrations.RunPython.noop)]
