"""What happens inside a rank around the user's function."""
