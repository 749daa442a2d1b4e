"""Django's commands, one a module."""
