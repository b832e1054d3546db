from django.db import migrations, models
from django.db.models import Max


def name_the_live_version(apps, schema_editor):
    """Until now the version with the highest number was live."""
    Policy = apps.get_model("policies", "Policy")
    for policy in Policy.objects.annotate(highest=Max("versions__number")).exclude(highest=None):
        Policy.objects.filter(pk=policy.pk).update(live=policy.highest)


class Migration(migrations.Migration):

    dependencies = [
        ("policies", "0002_version_remembers_its_draft"),
    ]

    operations = [
        migrations.AddField("policy", "live", models.PositiveIntegerField(default=1)),
        migrations.AddField(
            "policy",
            "direct",
            models.CharField(
                choices=[("allowed", "Allowed"), ("admin", "Admin"), ("never", "Never")], default="allowed", max_length=8
            ),
        ),
        migrations.AddField("policy", "approvals_needed", models.PositiveSmallIntegerField(default=0)),
        migrations.AddField("draft", "savers", models.JSONField(default=list)),
        migrations.RunPython(name_the_live_version, migrations.RunPython.noop),
    ]
