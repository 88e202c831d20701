"""From what was asked and what the machine has to a plan. Starts nothing."""
