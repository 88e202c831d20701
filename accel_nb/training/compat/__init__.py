"""What ``accelerate.utils`` offers beside training, under its names."""
