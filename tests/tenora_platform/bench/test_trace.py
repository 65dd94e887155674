from __future__ import annotations

from pathlib import Path

import pytest

from tenora_platform.bench.trace import TraceLine, read_trace


def written(folder: Path, text: str) -> Path:
    file = folder / "trace.jsonl"
    file.write_text(text)
    return file


def test_a_line_is_a_request(tmp_path: Path) -> None:
    one = '{"prompt_tokens": 5, "output_tokens": 7}'
    other = '{"at": 1.5, "prompt_tokens": 6, "output_tokens": 8, "tenant": "a"}'
    assert read_trace(written(tmp_path, f"{one}\n\n{other}\n")) == [TraceLine(5, 7), TraceLine(6, 8, 1.5, "a")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no request"),
        ('{"prompt_tokens": 5, "output_tokens": 7}\n{"prompt_tokens": 0, "output_tokens": 7}', ":2: "),
        ('{"at": -1, "prompt_tokens": 5, "output_tokens": 7}', ":1: "),
        ("not json", ":1: "),
        (
            '{"at": 2, "prompt_tokens": 5, "output_tokens": 7}\n{"at": 1, "prompt_tokens": 5, "output_tokens": 7}',
            "order",
        ),
    ],
)
def test_what_is_no_trace_is_refused_by_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_trace(written(tmp_path, text))
