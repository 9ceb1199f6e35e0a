"""Small files, written whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from steps.core.files import signatures, write_text


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


def test_signatures_are_of_all_files_below_but_compiled_ones(tmp_path: Path) -> None:
    for name in ("a.py", "b/c/d.py", "b/note.txt", "b/__pycache__/d.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "b/c")

    def names(*folders: Path, suffix: str = "") -> list[str]:
        return sorted(str(Path(path).relative_to(tmp_path)) for path, *_ in signatures(*folders, suffix=suffix))

    assert names(tmp_path) == ["a.py", "b/c/d.py", "b/note.txt", "elsewhere/d.py"]
    assert names(tmp_path / "b", tmp_path / "gone", suffix=".py") == ["b/c/d.py"]
    before = set(signatures(tmp_path, suffix=".py"))
    (tmp_path / "a.py").write_text("a.Py")
    assert len(before - set(signatures(tmp_path, suffix=".py"))) == 1
