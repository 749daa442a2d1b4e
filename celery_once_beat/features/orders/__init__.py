"""What people order: windows to run, windows to give up, and the log of who ordered what."""
