"""A Django project; its database, and what of Celery it sets, come from the environment, as JSON."""

import json
import os

if "mysql" in os.environ["DATABASE"]:
    import pymysql

    pymysql.install_as_MySQLdb()  # mysqlclient needs a compiler

SECRET_KEY = "tests"
USE_TZ = os.environ.get("USE_TZ", "1") == "1"
TIME_ZONE = "Europe/Berlin"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": json.loads(os.environ["DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "memory://")
CELERY_BROKER_CONNECTION_TIMEOUT = 1.0
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("QUEUE", "shop")
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_MAX_LOOP_INTERVAL = 0.5  # how often rows are looked at
CELERY_RESULT_EXPIRES = None  # else each beat makes a row for the clean-up
CELERY_ONCE_BEAT_REDIS_URL = os.environ.get("STORE_URL", "redis://127.0.0.1:1/0")
CELERY_ONCE_BEAT_CLAIM_LEASE = 1.0
CELERY_ONCE_BEAT_PUBLISH_TIMEOUT = 1.0
CELERY_ONCE_BEAT_RECOVERY_INTERVAL = 0.3
CELERY_ONCE_BEAT_START_TIMEOUT = 3.0
CELERY_ONCE_BEAT_LEASE = 1.5
globals().update(json.loads(os.environ.get("SETTINGS", "{}")))
