"""Start a program of a peer on a server that speaks Chat Completions only. Not counted: real servers do not need it."""

import runpy
import sys

try:
    import agents
except ImportError:
    pass
else:
    agents.set_default_openai_api("chat_completions")
    agents.set_tracing_disabled("08" not in sys.argv[1])

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
