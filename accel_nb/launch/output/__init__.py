"""What ranks write: bytes in, lines and progress rows out, bounded on the way."""
