"""Whose turn it is to have something compiled. Pure policy."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First come, first served within a tenant; the tenants take turns, however much one of them asks for."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()  # whose turn it is comes first

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def push(self, tenant: str, item: T) -> None:
        self._tenants.setdefault(tenant, OrderedDict())[item] = None

    def pop(self) -> T | None:
        if not self._tenants:
            return None
        tenant, items = self._tenants.popitem(last=False)
        item, _ = items.popitem(last=False)
        if items:
            self._tenants[tenant] = items
        return item

    def remove(self, item: T) -> None:
        """Wherever it stands; nothing to do when it does not."""
        for tenant, items in list(self._tenants.items()):
            items.pop(item, None)
            if not items:
                del self._tenants[tenant]
