"""vLLM's OpenAI server with limits on what anybody may send: `python -m steps.kit.vllm_process`, with
vLLM's options.

vLLM has options for the headers' size and number, which only uvicorn's parser h11 reads, and starts the other one where it
is installed. Here that is h11. Requests are not logged one by one: their addresses are what clients wrote.
"""

from __future__ import annotations

import sys


def main() -> None:
    from uvicorn import config
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    from steps.kit.guard import LIMITED

    config.HTTP_PROTOCOLS["auto"] = config.HTTP_PROTOCOLS[LIMITED["http"]]
    size = str(LIMITED["h11_max_incomplete_event_size"])
    sys.argv += ["--h11-max-incomplete-event-size", size, "--disable-uvicorn-access-log"]
    serve()


if __name__ == "__main__":
    main()
