"""The main road: a question in, an answer out, as the stock OpenAI client sees it."""

from __future__ import annotations

from gateway_under_test import Served, TenantOfTest

HELLO = [{"role": "user", "content": "hi"}]


def test_the_stock_client_gets_an_answer(gateway: Served, tenant: TenantOfTest) -> None:
    answer = gateway.client(tenant.key).chat.completions.create(model="toy", messages=HELLO)
    assert answer.choices[0].message.content == "Hello ok"
    (row,) = tenant.wait_for_usage()
    assert (row.prompt_tokens, row.completion_tokens) == (answer.usage.prompt_tokens, 2)
