"""Ranks on a Ray cluster: the cluster, room on it, actors that are kept, and what Ray knows about their deaths."""
