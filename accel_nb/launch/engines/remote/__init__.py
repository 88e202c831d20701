"""Keepers that are not the kernel's own joined into one run, over the network.

kernel ── JoinedGroup ── Hub ══zmq, CURVE══ agent ──run channel── keeper ──▶ ranks
"""
