from __future__ import annotations

import pytest

from accel_nb.launch.sizes import size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB")]
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text
