"""Pictures in messages: the forms that are read, what is refused, and where they stand."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from addons.agents.episode import Episode
from environments.base import Scenario, picture_url
from environments.kit import pictures
from environments.kit.agents import AgentEnv, read_row
from tests.support.seeing import picture


def image(form: str = "PNG", size: tuple[int, int] = (8, 8), mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new(mode, size, options.pop("colour", None)).save(file, form, **options)
    return file.getvalue()


def url(raw: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header says so many pixels, with a body of a few bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", pictures.FORMATS)
def test_every_format_is_read(form: str) -> None:
    raw = image(form)
    name, data = pictures.from_url(url(raw, form.lower()))
    assert (len(name), base64.b64decode(data)) == (64, raw)
    assert pictures.decoded(data).size == (8, 8)
    assert picture_url(raw) == url(raw, form.lower())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is none of PNG, JPEG, WEBP, GIF"),
        (b"GIF89a and no picture", "is none of PNG"),
        (image("BMP"), "is none of PNG"),
        (picture(1)[:-40], "cannot be decoded"),
        (bomb(9600, 9600), "9600 x 9600 pixels, and at most 16777216"),  # more than PIL warns of
        (bomb(60000, 60000), "far more than 16777216 pixels"),
        (image(size=(4020, 4)), "one side is over 200 times the other"),
        (b"\0" * (pictures.BYTES + 1), f"and at most {pictures.BYTES} are taken"),
    ],
    ids=["empty", "words", "bmp", "cut", "large", "bomb", "long", "heavy"],
)
def test_what_is_no_whole_picture_of_a_size_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pictures.checked(raw)


def test_an_animation_is_refused() -> None:
    from PIL import Image

    file = io.BytesIO()
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 255)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match="animation"):
        pictures.checked(file.getvalue())


@pytest.mark.parametrize("address", ["https://example.org/a.png", "file:///etc/passwd", "data:text/plain;base64,AA=="])
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(ValueError, match="nothing is fetched from an address"):
        pictures.from_url(address)


def test_transparency_is_white_and_exif_turns() -> None:
    from PIL import Image

    clear = pictures.decoded(base64.b64encode(image(mode="RGBA", colour=(255, 0, 0, 0))).decode())
    assert clear.getpixel((0, 0)) == (255, 255, 255)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = pictures.decoded(base64.b64encode(image("JPEG", (8, 16), exif=exif)).decode())
    assert turned.size == (16, 8)


def test_pictures_stand_at_their_place_in_the_text() -> None:
    first, second = pictures.checked(picture(1)), pictures.checked(picture(2))
    message = {"role": "user"} | pictures.with_pictures(["a", "b", first, "c", second])
    [plain], bytes_of = pictures.apart([message])
    assert plain["content"] == "a\nbc"
    assert [each["at"] for each in plain["pictures"]] == [3, 4]
    assert bytes_of == dict((first, second))
    assert pictures.marked(plain) == "a\nb[picture]c[picture]"
    assert pictures.hashes([plain]) == [first[0], second[0]]
    parts = pictures.for_openai(plain, bytes_of)["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url"]
    assert parts[1]["image_url"]["url"] == url(picture(1))
    assert {"role": "user"} | pictures.read_content(parts, None) == {"role": "user"} | pictures.with_pictures(
        ["a\nb", first, "c", second]
    )


def test_a_line_of_scenarios_may_name_a_file_or_hold_a_data_url(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    made = []
    for address in ("a.png", url(picture(1))):
        content = [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": "What is it?"}]
        messages, data = read_row(json.dumps({"messages": [{"role": "user", "content": content}], "n": 1}), tmp_path)
        made.append(Scenario.make("t", "train", messages, data))
    parts = [{"type": "image_url", "image_url": {"url": picture_url(picture(1))}}, content[1]]
    made.append(Scenario.make("t", "train", [{"role": "user", "content": parts}], {"n": 1}))
    assert made[0] == made[1] == made[2]
    assert list(made[0].pictures) == pictures.hashes(made[0].messages)
    assert "data" not in made[0].messages[0]["pictures"][0]
    assert Scenario.model_validate_json(made[0].model_dump_json()) == made[0]
    episode = Episode("e", made[0], 0, 0, "http://localhost", "key", 1.0)
    assert episode.messages[0]["content"][0]["image_url"]["url"] == url(picture(1))
    assert episode.question == "What is it?"


def test_a_scenario_without_pictures_is_written_as_before() -> None:
    made = Scenario.make("t", "train", [{"role": "user", "content": "hi"}], {})
    assert set(made.model_dump()) == {"id", "task", "split", "messages", "data"}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "../a.png"}}]}, "there is no picture"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b.png"}}]}, "there is no picture"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}, "fetched"),
        ({"role": "user", "content": [{"type": "audio"}]}, "part 1 of a content must be"),
        ({"role": "system", "content": [{"type": "text", "text": "hi"}]}, "stand in messages of the user"),
        ({"role": "user", "content": "hi", "pictures": []}, "as parts image_url"),
        ({"role": "user", "content": []}, "messages must be a list"),
    ],
)
def test_a_message_that_cannot_be_shown_is_refused(message: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.png").write_bytes(picture(1))
    with pytest.raises(ValueError, match=reason):
        read_row({"messages": [message]}, tmp_path / "inner")


def test_a_bad_picture_names_its_line(tmp_path: Path) -> None:
    class Maps(AgentEnv):
        task, maker = "maps", None

    (tmp_path / "a.png").write_bytes(b"no picture")
    content = [{"type": "image_url", "image_url": {"url": "a.png"}}]
    (tmp_path / "scenarios.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": content}]}) + "\n")
    with pytest.raises(ValueError, match=r"scenarios.jsonl, line 1: part 1 of a content: the picture is none of PNG"):
        Maps.load(tmp_path)


def test_a_scenario_needs_the_bytes_of_its_pictures() -> None:
    message = {"role": "user", "content": "hi", "pictures": [{"at": 0, "sha256": "0" * 64}]}
    with pytest.raises(ValueError, match="whose bytes are not given"):
        Scenario.make("t", "train", [message], {})
