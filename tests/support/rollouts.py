"""Rollout functions for tests of the clients: what one does is in its scenario's data."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from environments import Result


async def rollout(episode: Any) -> Any:
    do = episode.data["do"]
    match do:
        case "number":
            return 1
        case "result":
            return Result(reward=0.25, success=True, components={"a": 0.25}, output=episode.question)
        case "too much":
            return Result(reward=1.0, output="x" * 200_000)
        case "nothing":
            return None
        case "text":
            return "good"
        case "infinite":
            return float("nan")
        case "error":
            raise RuntimeError(f"no luck with {episode.api_key}")
        case "half a letter":
            raise ValueError("unknown country \ud83d")
        case "exit":
            sys.exit(3)
        case "die":
            os._exit(7)
        case "slow":
            await asyncio.sleep(60)
        case "deaf":
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
        case "print":
            print("a line")
            episode.log("another, with " + episode.api_key)
            await asyncio.sleep(0.05)
            print("and the ", end="")
            print("last")
            return 0.0
        case "block":
            await asyncio.sleep(0.1)
            wait_for(Path(episode.data["file"]))
            return 1.0
        case "touch":
            await asyncio.sleep(0.5)
            Path(episode.data["file"]).touch()
            return 1.0
        case "child":
            child = subprocess.Popen(["sleep", "300"])
            Path(episode.data["file"]).write_text(f"{os.getpid()} {child.pid}")
            await asyncio.sleep(300)
        case "wait":
            while not Path(episode.data["file"]).exists():
                await asyncio.sleep(0.02)
            return float(episode.data.get("place", 0))
    raise ValueError(do)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)
