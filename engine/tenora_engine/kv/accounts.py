"""What each tenant has of the KV cache, and how well it serves him: counts only, nothing of what the blocks hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class KvAccount:
    """One tenant's. Tokens and evictions are counted from when he was first seen (again)."""

    queried_tokens: int = 0  # looked for in the cache
    hit_tokens: int = 0  # found
    evicted_blocks: int = 0  # could be found, until somebody else needed the memory
    held_blocks: int = 0  # in use; one used by two of his sequences counts once
    cached_blocks: int = 0  # not in use, and can still be found

    @property
    def at_rest(self) -> bool:
        return not (self.held_blocks or self.cached_blocks)


class KvAccounts:
    """By tenant. Of those that have no block at all the longest unused is forgotten when there are too many: there
    are never more accounts than the larger of `max_accounts` and the number of blocks, and one."""

    def __init__(self, max_accounts: int = 1024) -> None:
        self._max_accounts = max_accounts
        self._accounts: OrderedDict[str, KvAccount] = OrderedDict()

    def of(self, tenant: str) -> KvAccount:
        account = self._accounts.get(tenant)
        if account is None:
            self._make_room()
            account = self._accounts[tenant] = KvAccount()
        else:
            self._accounts.move_to_end(tenant)
        return account

    def snapshot(self) -> dict[str, KvAccount]:
        return dict(self._accounts)

    def _make_room(self) -> None:
        if len(self._accounts) < self._max_accounts:
            return
        for tenant, account in self._accounts.items():
            if account.at_rest:
                del self._accounts[tenant]
                return
