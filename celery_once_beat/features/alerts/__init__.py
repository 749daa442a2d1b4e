"""Alerts: a window is late, has ended and isn't done, or its failure has paused its entry."""
