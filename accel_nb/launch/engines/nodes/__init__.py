"""Several machines, each with a kernel of its own: where they meet, who is missing, what they tell each other."""
