"""Overlap and limits: a window may be skipped, or wait for its turn or for a slot."""
