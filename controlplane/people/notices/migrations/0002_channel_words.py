from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notices", "0001_initial")]

    operations = [
        migrations.AddField("channel", "words", models.BooleanField(db_default=True, default=True)),
    ]
