"""What is built and shipped."""
