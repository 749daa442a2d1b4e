"""Two beats and two workers, one of each killed: run it with ``python -m examples.ha_pair``."""
