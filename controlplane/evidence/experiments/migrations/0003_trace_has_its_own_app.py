from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ("experiments", "0002_experiment_is_a_job"),
        ("traces", "0001_initial"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel("Trace")]),
    ]
