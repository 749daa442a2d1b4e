"""Django's settings for ``once.py``: the database that all nodes share, and django-celery-beat's tables in it."""

from examples.ways import node

SECRET_KEY = "of an example that serves nothing"  # noqa: S105
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": node.DATABASE, "OPTIONS": {"timeout": 30}}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = True
