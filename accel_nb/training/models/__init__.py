"""What `prepare` makes of a model, and the way back."""
