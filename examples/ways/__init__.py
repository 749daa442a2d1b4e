"""Six ways by which people run a job once though it is scheduled on every node, and the same with celery-once-beat.

Run all with ``python -m examples.ways``, one with, say, ``python -m examples.ways.a_lock_row``.
"""
