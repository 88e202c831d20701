"""Who this rank is, what device it has, and how ranks take turns."""
