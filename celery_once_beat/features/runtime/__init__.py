"""Schedules that people set while beats run: their definitions in the store, and the beats' source of their entries."""
