from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("finoflow", "0002_approvals")]

    operations = [
        migrations.CreateModel(
            name="Candidate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64, verbose_name="audience")),
                ("permission", models.CharField(blank=True, max_length=255, verbose_name="permission")),
                ("group_name", models.CharField(blank=True, max_length=255, verbose_name="group's name")),
                ("user_name", models.CharField(blank=True, max_length=255, verbose_name="user's name")),
            ],
            options={
                "verbose_name": "candidate",
                "verbose_name_plural": "candidates",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["user_name", "group_name"], name="finoflow_candidates"),
                    models.Index(fields=["digest"], name="finoflow_audiences"),
                ],
            },
        ),
        migrations.AddField(
            model_name="wait",
            name="audience_digest",
            field=models.CharField(
                blank=True, db_default="", default="", max_length=64, verbose_name="audience's digest"
            ),
        ),
        migrations.AddIndex(
            model_name="wait",
            index=models.Index(
                condition=models.Q(("approval__isnull", False), ("outcome", "open")),
                fields=["audience_digest", "due_at", "opened_at", "id"],
                name="finoflow_asked",
            ),
        ),
        migrations.AddIndex(
            model_name="wait",
            index=models.Index(
                condition=models.Q(("approval__isnull", False)),
                fields=["audience_digest", "-closed_at", "opened_at", "id"],
                name="finoflow_concerned",
            ),
        ),
        migrations.AddIndex(
            model_name="wait",
            index=models.Index(
                condition=models.Q(("approval__isnull", False)),
                fields=["-closed_at", "opened_at", "id"],
                name="finoflow_open_first",
            ),
        ),
    ]
