"""What a real server answered, replayed against the model: what that doesn't allow, one of the two has wrong."""

from __future__ import annotations

from simulation.replay import Replay


def test_a_reply_that_cannot_be():
    """The first reply that the model doesn't allow is named, with what it does allow."""
    entry = "once:{7}:entry:nightly"
    first = "2026-01-01T00:00:00.000000Z"
    window = "2026-01-01T00:01:00.000000Z"
    load = {"beat": "b", "fingerprint": "f", "absent_at": "",
            "options": "max_attempts 3 recover 1 grace - overlap - retry_failed_after -"}  # fmt: skip
    claim = {"beat": "b", "from_cursor": first, "fingerprint": "f", "mode": "run", "claim_lease": 5000, "expires": None,
             "missed": [], "marker_ttl": 600_000}  # fmt: skip
    again = {**claim, "beat": "other"}

    def line(verb, args, reply, start=window):
        return {"verb": verb, "entry": entry, "start": start, "args": args, "reply": reply, "at": 1000}

    history = [
        line("load", load, f"loaded {first} 1 new {first} ", start=""),
        line("claim", claim, ["claimed", 1, "0", 0]),
        line("buffer", {}, ["whatever"]),
        line("claim", again, ["claimed", 1, "0", 0]),
    ]
    steps = Replay()
    *allowed, refused = map(steps.step, history)
    assert allowed == [None] * 3
    assert refused is not None
    assert (refused.number, refused.allowed, refused.not_modelled) == (4, [("moved", window)], 1)
    assert steps.not_modelled == {"buffer": 1}
