"""The table of recorded windows."""

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """Makes it."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="RecordedWindow",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("entry", models.CharField(max_length=255)),
                ("start", models.CharField(max_length=27)),
                ("step", models.CharField(max_length=100)),
                ("fence", models.BigIntegerField(null=True)),
                ("attempt", models.IntegerField()),
                ("recorded_at", models.CharField(max_length=27)),
                ("execution", models.CharField(max_length=32)),
                ("result", models.TextField(null=True)),
            ],
            options={
                "db_table": "once_effects",
                "indexes": [models.Index(fields=["recorded_at"], name="once_effects_recorded_at")],
            },
        ),
    )
