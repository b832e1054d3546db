import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("policies", "0004_draft_note"),
    ]

    operations = [
        migrations.AddField("policy", "least_share", models.FloatField(default=0.05, db_default=0.05)),
        migrations.AddField("policy", "least_for_s", models.PositiveIntegerField(default=600, db_default=600)),
        migrations.AddField("policy", "least_bake_s", models.PositiveIntegerField(default=600, db_default=600)),
        migrations.CreateModel(
            name="FormerPool",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=63)),
                ("model", models.CharField(max_length=200)),
                ("policy", models.CharField(max_length=63)),
                ("removed_at", models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={"ordering": ["-pk"]},
        ),
    ]
