"""The arithmetic of limits, without Redis."""

from __future__ import annotations

from tenora_platform.gateway.limits.policy import Cost, Decision, Limit, Standing, Unit, decision_from, unused

REQUESTS = Limit("tenant:1", Unit.REQUESTS, 60)
TOKENS = Limit("tenant:1", Unit.TOKENS, 1000)


def test_headers_agree_with_the_decision() -> None:
    """QTA-04"""
    decision = decision_from([REQUESTS, TOKENS], [1, 1_000, 3, 0, 60_500, 250, 0, 59_001])
    assert decision.granted
    assert decision.blocking is None
    assert decision.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "57",
        "x-ratelimit-reset-requests": "60.500s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "750",
        "x-ratelimit-reset-tokens": "59.001s",
    }


def test_the_longest_wait_is_the_one_that_counts() -> None:
    decision = decision_from([REQUESTS, TOKENS], [0, 1_000, 60, 400, 400, 990, 9_000, 9_000])
    assert decision.blocking == Standing(TOKENS, 990, 9_000, 9_000)
    never = decision_from([REQUESTS, TOKENS], [0, 1_000, 60, 400, 400, 0, -1, 0])
    assert never.blocking is not None
    assert never.blocking.fits_in_ms is None


def test_the_tightest_limit_of_a_unit_is_shown() -> None:
    key = Limit("key:1", Unit.TOKENS, 500)
    decision = Decision(True, (Standing(TOKENS, 10, 0, 1), Standing(key, 490, 0, 1)))
    assert decision.headers()["x-ratelimit-remaining-tokens"] == "10"


def test_never_more_goes_back_than_was_taken() -> None:
    assert unused(Cost(1, 100), Cost(1, 30)) == Cost(0, 70)
    assert unused(Cost(1, 100), Cost(1, 130)) == Cost(0, 0)


def test_nothing_is_unlimited_and_shows_no_header() -> None:
    assert Decision(True, ()).headers() == {}
