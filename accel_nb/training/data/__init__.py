"""Which samples a rank reads, and the loader that reads them."""
