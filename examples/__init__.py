"""Examples; each runs with one command."""
