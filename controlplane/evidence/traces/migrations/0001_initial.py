import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    """Takes the model over from the app `experiments`; the table and its rows stay."""

    initial = True

    dependencies = [
        ("experiments", "0002_experiment_is_a_job"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="Trace",
                    fields=[
                        ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                        ("name", models.CharField(max_length=120, unique=True)),
                        ("format", models.CharField(max_length=20)),
                        ("source", models.CharField(choices=[("upload", "upload"), ("folder", "folder")], max_length=8)),
                        ("sha256", models.CharField(max_length=64)),
                        ("bytes", models.PositiveBigIntegerField()),
                        ("mtime_ns", models.BigIntegerField(default=0)),
                        ("summary", models.JSONField(default=dict)),
                        ("actor", models.CharField(blank=True, max_length=200)),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                    ],
                    options={"ordering": ["name"], "db_table": "experiments_trace"},
                ),
            ],
        ),
    ]
