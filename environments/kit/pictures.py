"""Pictures in messages: how a message holds them, the forms in which they come, and what is refused.

A message's content stays a text. Its pictures stand beside it, each with its place among the text's letters, and what
holds the messages (`Scenario`, `Trajectory`) has each picture's bytes once, as base64 by their SHA-256:

    {"role": "user", "content": "Which colour is it?", "pictures": [{"at": 0, "sha256": "9f86d0…"}]}

A picture comes as a data URL, as a file in the task's folder, or as base64. Nothing is fetched from an address. What
every reader accepts is in `FORMATS`, still, whole, of at most `BYTES` and `PIXELS`, and no longer than `RATIO` times its
width: a model of the Qwen-VL families takes no others.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.kit.transcripts import Message

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
BYTES = 10 * 2**20
PIXELS = 2**24
RATIO = 200
MARK = "[picture]"  # in the place of a picture, for readers of text alone
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)

_good: set[str] = set()  # hashes of pictures that were checked: agents send the same ones again with each request


def checked(raw: bytes) -> tuple[str, str]:
    """(SHA-256, base64) of a picture's bytes. ValueError says what is wrong with them."""
    if len(raw) > BYTES:
        raise ValueError(f"the picture has {len(raw)} bytes, and at most {BYTES} are taken: make it smaller")
    name = hashlib.sha256(raw).hexdigest()
    if name not in _good:
        _open(raw)
        _good.add(name)
    return name, base64.b64encode(raw).decode()


def from_url(url: str) -> tuple[str, str]:
    """(SHA-256, base64) of a data URL. ValueError for another address, or a picture that is refused."""
    begin = DATA_URL.match(url)
    if not begin:
        raise ValueError(
            f"a picture must be a data URL (data:image/png;base64,…), not {url[:40]!r}: nothing is fetched from an address, "
            "so send the picture itself"
        )
    return from_base64(url[begin.end() :])


def from_base64(text: str) -> tuple[str, str]:
    """(SHA-256, base64) of base64 as it may be written. ValueError for what is none, or a picture that is refused."""
    if len(text) > BYTES * 3 // 2:
        raise ValueError(f"the picture has more than {BYTES} bytes: make it smaller")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the picture's bytes are no base64") from None
    return checked(raw)


def decoded(data: str) -> Any:
    """The PIL image of a picture's base64: upright as its EXIF says, RGB, what is transparent on white."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(_open(base64.b64decode(data)))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(image)
        image = ground
    return image.convert("RGB")


def _open(raw: bytes) -> Any:
    """The PIL image, read to its end. Its size is known before its pixels are decoded."""
    from PIL import Image

    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):  # PIXELS is less
            image = Image.open(io.BytesIO(raw), formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"the picture has far more than {PIXELS} pixels: make it smaller") from None
    except Exception:  # PIL raises many kinds for bytes that somebody made up
        raise ValueError(f"the picture is none of {', '.join(FORMATS)}, or its bytes are damaged") from None
    width, height = image.size
    if width * height > PIXELS:
        raise ValueError(f"the picture has {width} x {height} pixels, and at most {PIXELS} are taken: make it smaller")
    if max(width, height) > RATIO * min(width, height):
        raise ValueError(f"the picture has {width} x {height} pixels: one side is over {RATIO} times the other")
    if getattr(image, "n_frames", 1) > 1:
        raise ValueError("the picture is an animation: send one frame of it")
    try:
        image.load()
    except Exception as problem:
        raise ValueError(f"the picture cannot be decoded ({type(problem).__name__}): its bytes are damaged") from None
    return image


def with_pictures(texts_and_pictures: Sequence[str | tuple[str, str]]) -> dict[str, Any]:
    """The content of a message, and its pictures beside it, of texts and (SHA-256, base64) in their order. Texts without a
    picture between them are joined by a line break. The pictures hold their bytes until `apart` takes them out."""
    text, pictures, is_after_text = "", [], False
    for part in texts_and_pictures:
        if isinstance(part, str):
            text += ("\n" if is_after_text else "") + part
        else:
            pictures.append({"at": len(text), "sha256": part[0], "data": part[1]})
        is_after_text = isinstance(part, str)
    return {"content": text} | ({"pictures": pictures} if pictures else {})


def read(message: Message) -> Message:
    """A message whose content may be a list of parts, with its pictures beside its text. ValueError as `read_content`."""
    content = message.get("content")
    return message | read_content(content, None) if isinstance(content, list) else message


def apart(messages: Sequence[Message]) -> tuple[tuple[Message, ...], dict[str, str]]:
    """The messages without the bytes of their pictures, and the bytes by SHA-256."""
    bytes_of: dict[str, str] = {}
    plain = []
    for message in messages:
        if message.get("pictures"):
            bytes_of |= {each["sha256"]: each["data"] for each in message["pictures"] if "data" in each}
            shown = [{"at": each["at"], "sha256": each["sha256"]} for each in message["pictures"]]
            message = message | {"pictures": shown}
        plain.append(message)
    return tuple(plain), bytes_of


def hashes(messages: Sequence[Message]) -> list[str]:
    """The pictures of messages, in the order in which they are shown."""
    return [each["sha256"] for message in messages for each in message.get("pictures") or ()]


def pieces(message: Message) -> Iterator[str | dict[str, Any]]:
    """The texts of a message and the entries of its pictures, in their order."""
    text, start = str(message["content"]), 0
    for entry in message.get("pictures") or ():
        if entry["at"] > start:
            yield text[start : entry["at"]]
        yield entry
        start = entry["at"]
    if text[start:]:
        yield text[start:]


def as_parts(message: Message, make: Callable[[str], dict[str, Any]]) -> Message:
    """A message with pictures in a form with a list of parts, each picture as `make` gives it of its hash; others as they
    are."""
    if not message.get("pictures"):
        return message
    parts = [
        {"type": "text", "text": piece} if isinstance(piece, str) else make(piece["sha256"])
        for piece in pieces(message)
    ]
    return {name: value for name, value in message.items() if name != "pictures"} | {"content": parts}


def for_openai(message: Message, bytes_of: Mapping[str, str]) -> Message:
    """A message as OpenAI's chat completions take it, with data URLs."""

    return as_parts(message, lambda name: {"type": "image_url", "image_url": {"url": _url(bytes_of[name])}})


def picture_url(raw: bytes) -> str:
    """The data URL of a picture's bytes. ValueError for a picture that is refused."""
    return _url(checked(raw)[1])


def _url(data: str) -> str:
    first = base64.b64decode(data[:16])
    kinds = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
    kind = next((kind for begin, kind in kinds.items() if first.startswith(begin)), "webp")
    return f"data:image/{kind};base64,{data}"


def marked(message: Message) -> str:
    """The text of a message with MARK in the place of each picture."""
    return "".join(piece if isinstance(piece, str) else MARK for piece in pieces(message))


def named(message: Message) -> str:
    """The text of a message with the hash of each picture as a word in its place: the same for the same pictures alone."""
    return "".join(piece if isinstance(piece, str) else f" {piece['sha256']} " for piece in pieces(message))


def read_content(content: list[Any], folder: Path | None) -> dict[str, Any]:
    """The content and the pictures of a list of parts as a task's author writes them: OpenAI's text and image_url, whose
    url may be the path of a file in the task's folder. ValueError for anything else."""
    parts: list[str | tuple[str, str]] = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append(part["text"])
            continue
        entry = part.get("image_url") if kind == "image_url" else None
        url = entry.get("url") if isinstance(entry, dict) else None
        if not isinstance(url, str):
            raise ValueError(
                f'part {place + 1} of a content must be {{"type": "text", "text": …}} or {{"type": "image_url", '
                '"image_url": {"url": a data URL, or a file in the task\'s folder}}'
            )
        try:
            parts.append(from_url(url) if folder is None or ":" in url else checked(_file(folder, url)))
        except ValueError as problem:
            raise ValueError(f"part {place + 1} of a content: {problem}") from None
    return with_pictures(parts)


def _file(folder: Path, name: str) -> bytes:
    """The bytes of a file inside a folder, wherever links lead. ValueError where it is not there or too large."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ValueError(f"there is no picture {name!r} in {folder}")
    with path.open("rb") as file:
        return file.read(BYTES + 1)
