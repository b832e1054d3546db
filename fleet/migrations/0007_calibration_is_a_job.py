import django.utils.timezone
from django.db import migrations, models

STATUSES = [(s, s) for s in ("queued", "running", "done", "failed", "cancelled")]


def give_heartbeats(apps, schema_editor):
    """A calibration that runs during the upgrade is failed soon after, unless it ends first."""
    now = django.utils.timezone.now()
    running = apps.get_model("fleet", "Calibration").objects.filter(status="running")
    running.update(started_at=models.F("asked_at"), heartbeat_at=now)


def fail_cancelled(apps, schema_editor):
    apps.get_model("fleet", "Calibration").objects.filter(status="cancelled").update(status="failed")


class Migration(migrations.Migration):

    dependencies = [
        ("fleet", "0006_calibration"),
    ]

    operations = [
        migrations.AddField("calibration", "anyway", models.BooleanField(default=False)),
        migrations.AddField("calibration", "heartbeat_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("calibration", "sent_at", models.DateTimeField(default=django.utils.timezone.now)),
        migrations.AddField("calibration", "started_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("calibration", "step", models.CharField(blank=True, max_length=80)),
        migrations.AlterField(
            "calibration", "status", models.CharField(choices=STATUSES, default="queued", max_length=12)
        ),
        migrations.RunPython(give_heartbeats, fail_cancelled),
    ]
