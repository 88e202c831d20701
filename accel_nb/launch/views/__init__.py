"""What the user sees of a run as text."""
