"""Stop strings, across token boundaries too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_platform.gateway.stops import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What is shown piece by piece, the rest flushed at the end, and whether a stop string was met."""
    matcher, shown = StopMatcher(stops), []
    for piece in pieces:
        passed = matcher.push(piece)
        shown.append(passed.text)
        if passed.stopped:
            return shown, True
    return [*shown, matcher.flush()], False


def test_a_stop_string_over_several_pieces_shows_nothing() -> None:
    """API-01"""
    assert run(["DEFGHIJ"], ["DEF", "G", "HI", "J", "K"]) == (["", "", "", ""], True)


def test_what_was_held_back_for_nothing_is_released() -> None:
    """API-01"""
    shown, stopped = run(["DEFX"], ["DEF", "G", "HI", "J", "K"])
    assert "".join(shown) == "DEFGHIJK"
    assert not stopped


def test_text_held_at_the_end_is_not_lost() -> None:
    assert run(["END!"], ["the ", "END"]) == (["the ", "", "END"], False)


def test_of_two_stop_strings_in_one_piece_the_first_to_begin_wins() -> None:
    assert run(["cd", "bcde"], ["abcdef"]) == (["a"], True)


@pytest.mark.parametrize("stop", ["aab", "aa", "ab"])
def test_a_beginning_that_repeats_is_held_right(stop: str) -> None:
    shown, stopped = run([stop], ["a", "a", "a", "b", "x"])
    assert stopped
    assert "".join(shown) == "aaab"[: "aaab".find(stop)]


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    pieces=st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_against_the_naive_search(stops: list[str], pieces: list[str]) -> None:
    """The first piece to complete a stop string ends the text where that string begins."""
    expected, met, text = "".join(pieces), False, ""
    for piece in pieces:
        text += piece
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            expected, met = text[: min(found)], True
            break
    shown, stopped = run(stops, pieces)
    assert ("".join(shown), stopped) == (expected, met)


@given(stop=st.text("ab", min_size=2, max_size=5), pieces=st.lists(st.text("ab", min_size=1, max_size=3), max_size=10))
def test_no_beginning_of_a_stop_string_that_completes_is_ever_shown(stop: str, pieces: list[str]) -> None:
    """API-01"""
    shown, stopped = run([stop], pieces)
    if stopped:
        whole = "".join(pieces)
        assert whole.startswith("".join(shown) + stop)
