from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0015_calibration_load_range'),
    ]

    operations = [
        migrations.AddField(
            model_name='pool',
            name='scaled_prefills',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
    ]
