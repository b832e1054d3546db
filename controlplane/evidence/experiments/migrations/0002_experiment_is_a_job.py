from django.db import migrations, models
from django.utils import timezone


def give_heartbeats(apps, schema_editor):
    """An experiment whose worker ended with the upgrade is failed as lost."""
    apps.get_model("experiments", "Experiment").objects.filter(status="running").update(heartbeat_at=timezone.now())


class Migration(migrations.Migration):

    dependencies = [
        ("experiments", "0001_initial"),
    ]

    operations = [
        migrations.AddField("experiment", "heartbeat_at", models.DateTimeField(blank=True, null=True)),
        migrations.RunPython(give_heartbeats, migrations.RunPython.noop),
    ]
