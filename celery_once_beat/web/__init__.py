"""The board and the metrics over HTTP, on loopback unless told otherwise."""
