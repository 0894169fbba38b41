"""An address that cannot be bound is refused with a remedy."""

from __future__ import annotations

import pytest

from tuner.server.listening import ListenError, listen


def test_the_part_that_is_wrong_is_named() -> None:
    with pytest.raises(ListenError, match="choose another --host"):
        listen("999.1.1.1", 0)
    with listen("127.0.0.1", 0) as taken, pytest.raises(ListenError, match="choose another --port"):
        listen("127.0.0.1", taken.getsockname()[1])
