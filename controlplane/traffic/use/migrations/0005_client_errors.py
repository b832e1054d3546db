from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('use', '0004_media'),
    ]

    operations = [
        migrations.AddField(
            model_name='use',
            name='client_errors',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
    ]
