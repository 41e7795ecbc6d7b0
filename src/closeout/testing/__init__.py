"""Test agents: a scripted model, in process or over HTTP, with faults on request; recorded runs.

from closeout.testing import ScriptedClient, answer, call, recorded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeout.lazy_names import lazy_names

if TYPE_CHECKING:
    from closeout.testing.client import ScriptedClient
    from closeout.testing.isolation import isolated
    from closeout.testing.misbehaviour import MISBEHAVIOURS, NON_ANSWERS, Misbehaviour, always, once, sometimes
    from closeout.testing.open_runs import assert_runs_continue
    from closeout.testing.recording import RecordedClient, Recording, export_run, recorded
    from closeout.testing.regression import assert_no_regression
    from closeout.testing.script import RequestView, Turn, answer, call, say
    from closeout.testing.scripted_server import ScriptedServer, serve_script

__all__ = [
    "MISBEHAVIOURS",
    "NON_ANSWERS",
    "Misbehaviour",
    "RecordedClient",
    "Recording",
    "RequestView",
    "ScriptedClient",
    "ScriptedServer",
    "Turn",
    "always",
    "answer",
    "assert_no_regression",
    "assert_runs_continue",
    "call",
    "export_run",
    "isolated",
    "once",
    "recorded",
    "say",
    "serve_script",
    "sometimes",
]

_HOMES = {
    "client": ("ScriptedClient",),
    "isolation": ("isolated",),
    "misbehaviour": ("MISBEHAVIOURS", "NON_ANSWERS", "Misbehaviour", "always", "once", "sometimes"),
    "open_runs": ("assert_runs_continue",),
    "recording": ("RecordedClient", "Recording", "export_run", "recorded"),
    "regression": ("assert_no_regression",),
    "script": ("RequestView", "Turn", "answer", "call", "say"),
    "scripted_server": ("ScriptedServer", "serve_script"),
}

__getattr__ = lazy_names(__name__, _HOMES)
