"""Small files, written whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from steps.core.files import write_text


def test_threads_that_write_the_same_file_do_not_take_each_others_temporary_file(tmp_path: Path) -> None:
    """As those of a flow do with the progress of two stages that run beside each other (train.overlap)."""
    path = tmp_path / "progress.json"
    texts = [f"{number}" * 50 for number in range(8)]

    def write(text: str) -> None:
        for _ in range(200):
            write_text(path, text, lasting=False)

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert path.read_text() in texts
    assert [file.name for file in tmp_path.iterdir()] == ["progress.json"]
