from django.db import migrations


def end(apps, schema_editor):
    """Earlier rows hold the keys of their sessions, which others may have read: everybody signs in again."""
    apps.get_model("sessions", "Session").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_roles"), ("sessions", "0001_initial")]
    operations = [migrations.RunPython(end, migrations.RunPython.noop)]
