"""Where Django looks for migrations."""
