"""Windows whose messages wait in a worker for their turn: the store records them, so that a death is seen."""
