"""Write a run as one HTML file that needs nothing else: the viewer's own pages, with the run's events in it."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib.resources import files

from closeout.codec import encode_json
from closeout.journal.events import ModelRequested
from closeout.journal.store import Store
from closeout.server.file_download import files_shape, run_files
from closeout.server.viewer.cited_sources import all_sources
from closeout.server.viewer.shapes import ended_shape, event_shape
from closeout.server.viewer.story_items import StoryItems

__all__ = ["export_run", "joined_modules"]

STATIC = files("closeout.server.viewer") / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def export_run(store: Store, run_id: str) -> str:
    """Return the page of one run.

    Raises:
        RunNotFound: No run has this name.
        JournalError: The journal cannot be read.
    """
    from closeout.server.viewer.evaluations import trial_shape  # imports much of the package

    rows = store.read(run_id).rows
    run = ended_shape(store, run_id)
    story = StoryItems(whole=True)
    story.feed(rows)
    requests = [event_shape(row) for row in rows if isinstance(row.event, ModelRequested)]
    trial = trial_shape(store, run_id)
    found = files_shape(run_files(store, rows))
    parts = {"run": run, "story": story.take(), "requests": requests, "trial": trial, "files": found}
    data = encode_json({**parts, "sources": all_sources(rows)}).decode()
    data = data.replace("<", "\\u003c")  # so that no text in it can end the script element
    script, style = joined_modules("main"), (STATIC / "style.css").read_text("utf-8")
    # With these hashes no other script can run, whatever the data contains.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(run_id)} · Closeout</title>
<style>{style}</style>
</head>
<body>
<script type="application/json" id="run-data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def joined_modules(first: str) -> str:
    """Return a module and those that it imports as one. Their top-level names must differ from each other."""
    joined: dict[str, str] = {}

    def add(name: str) -> None:
        if name in joined:
            return
        text = (STATIC / f"{name}.js").read_text("utf-8")
        joined[name] = ""  # found already, should two modules import each other
        for imported in _IMPORT.findall(text):
            add(imported)
        joined.pop(name)
        joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(first)
    return "\n".join(joined.values())


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
