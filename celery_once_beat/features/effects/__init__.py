"""Effects once: a window's row in the user's own transaction.

Who decides
-----------
The database, by a primary key. ``record`` inserts the row of a window and a step in the transaction in which the body
writes. Whoever commits first is the one. Another transaction with the same row waits until the first has ended. If that
committed, the second is refused; if it was rolled back, the second continues. Redis isn't asked: what it has lost, or a
worker that comes back late, changes nothing of this.

A stale execution may be the first to commit. The newer one is refused then, and ends as done: once is what counts, not
who.

What each failure does
----------------------
- Killed before its commit: the row is gone with the rest, and the next execution writes both.
- Killed after its commit, or the end isn't recorded: the next execution finds the row, and ends as done.
- Frozen with an open transaction: the next execution waits in ``record``, for as long as the database lets it.
- The reply to a commit is lost: the next execution knows more. In the same one ``record`` raises RecordError, since it
  can't tell that from a second transaction that lacks a step of its own.
- A deadlock, a serialization failure, a lock that isn't given in time: the database's own error leaves ``record``.
- The transaction's snapshot is older than the row (REPEATABLE READ, SERIALIZABLE): PostgreSQL fails to serialize it.
  MySQL's INSERT and locking reads see what is committed, whatever the snapshot, and refuse it.

``task`` is what a window's execution records; ``statements`` is the SQL, for all databases; ``in_sqlalchemy`` and
``in_django`` find the transaction it belongs to.
"""
