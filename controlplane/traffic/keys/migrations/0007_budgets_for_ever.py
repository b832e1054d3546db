from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('keys', '0006_budgets_of_pools'),
    ]

    operations = [
        migrations.AlterField(
            model_name='budget',
            name='per',
            field=models.CharField(choices=[('hour', 'Hour'), ('day', 'Day'), ('week', 'Week'), ('month', 'Month'), ('ever', 'Ever')], max_length=8),
        ),
    ]
