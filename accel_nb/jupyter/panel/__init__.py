"""The kernel's half of the panel beside a notebook: answers over the control channel, news over one comm."""
