"""What low-level messages mean, and what to do about them."""
