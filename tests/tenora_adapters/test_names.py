"""The rule for adapter names, on both sides of its bounds."""

from __future__ import annotations

import pytest

from tenora_adapters.errors import NameRejected
from tenora_adapters.names import check_adapter_name

REFUSED = [
    "a:b",
    "a/b",
    "../x",
    "..%2fx",
    "/etc",
    ".",
    "..",
    "",
    "a" * 64,
    "a" * 300,
    "a\0b",
    "ab\n",
    "😀",
    "smollm2-135m:x",
    "-x",
    "_x",
    ".x",
    "A",
    "a b",
    "é",
    "\N{FULLWIDTH LATIN SMALL LETTER A}",
    "a\u0661",
]


@pytest.mark.parametrize("name", REFUSED)
def test_adp_14_names_outside_the_allow_list_are_refused(name: str) -> None:
    with pytest.raises(NameRejected) as refused:
        check_adapter_name(name)
    assert refused.value.param == "name"


@pytest.mark.parametrize("name", ["a", "0", "support-bot", "v1.2_x", "a" * 63])
def test_adp_14_names_inside_are_taken_as_they_are(name: str) -> None:
    assert check_adapter_name(name, {"smollm2-135m"}) == name


def test_adp_14_a_base_models_name_is_refused() -> None:
    with pytest.raises(NameRejected) as refused:
        check_adapter_name("smollm2-135m", {"smollm2-135m"})
    assert refused.value.code == "reserved_adapter_name"
