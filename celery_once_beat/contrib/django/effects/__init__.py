"""The table in which ``self.window.record()`` writes: an app of its own, so that nobody else has its migration.

``"celery_once_beat.contrib.django.effects"`` in ``INSTALLED_APPS``, then ``migrate``. It needs neither
django-celery-beat nor the admin's app.
"""
