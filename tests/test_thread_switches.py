"""Threads take turns more often within a block, and as before after the last one."""

from __future__ import annotations

import sys
import threading

import pytest

from closeout.thread_switches import SWITCH_SECONDS, short_switches


def test_the_interval_is_short_until_the_last_of_blocks_that_overlap_ends() -> None:
    usual, inside, leave = sys.getswitchinterval(), threading.Event(), threading.Event()

    def other() -> None:
        with short_switches():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with short_switches():
        thread.start()
        assert inside.wait(60)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    leave.set()
    thread.join(60)
    assert sys.getswitchinterval() == usual


def test_an_interval_that_is_shorter_already_is_kept() -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(SWITCH_SECONDS / 2)
        with short_switches():
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS / 2)
    finally:
        sys.setswitchinterval(usual)
