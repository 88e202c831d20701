"""What a memory file holds: one pickle and the large buffers beside it.

    0          24                                   multiples of 4,096                   header_offset
    preamble | pickle ............................ | buffer 0 ....... | buffer 1 ..... | this header

The preamble comes first so that a reader finds the header, which is written last, when all sizes are known.
"""

from __future__ import annotations

import struct

import msgspec

MAGIC = b"accelnb1"
"""First bytes of every memory file; the digit is the layout's version."""

PREAMBLE = struct.Struct("<8sQQ")
"""`MAGIC`, the header's offset, the header's size; little-endian."""

BUFFER_ALIGNMENT_BYTES = 4096
"""A page, so that a copy-on-write write to one buffer never copies bytes of another."""

OUT_OF_BAND_BYTES = 64 << 10
"""From this size on a buffer stands beside the pickle; pickle's own frames have the same size (PEP 574, PEP 3154)."""


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """The header: what is in the file, and what is needed to load it."""

    python: str
    """``3.11``: bytecode loads in no other minor version (cloudpipe/cloudpickle#422)."""
    cloudpickle: str
    """Full version of the packer's cloudpickle."""
    function_name: str = ""
    """For people; empty for a result."""
    pickle_bytes: int
    """The pickle starts right behind the preamble."""
    buffers: tuple[tuple[int, int], ...] = ()
    """Offset and size in bytes of each out-of-band buffer, in the order in which the pickle asks for them."""
    sources: dict[str, str] = {}
    """Name of a cell's file (``<Cell In[7]>``) -> its text, so that tracebacks of a rank show source lines."""
