"""What starts ranks, one file per engine."""
