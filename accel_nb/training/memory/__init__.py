"""Memory: giving it back, recognising that it ran out, and the search for a batch size that fits on every rank."""
