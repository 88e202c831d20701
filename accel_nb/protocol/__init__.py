"""The values that cross a process boundary. No torch, no behaviour beyond validation."""
