"""The control API as the commands use it: signed in, with errors turned into `CommandError`.

Where to and as whom: `TENORA_URL`, `TENORA_USER` and `TENORA_PASSWORD`, or else the platform that runs from
`TENORA_HOME` on this machine, as its first administrator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import httpx

from tenora_platform.cli.terminal import CommandError
from tenora_platform.settings import settings

_HEADERS: Final = {"X-Tenora-Request": "1"}


class ApiError(CommandError):
    """The control API refused. `error` is what it answered: code, message, param, and of an upload its report."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(_message(response))
        self.status = response.status_code
        try:
            self.error: dict[str, Any] = dict(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            self.error = {}

    @property
    def code(self) -> str:
        return str(self.error.get("code"))


class Unreachable(CommandError):
    """The connection could not be made, or was cut."""


class ControlClient:
    """Use as a context manager; it signs in when entered and out when left."""

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url = url
        self._sign_in = {"username": username, "password": password}
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers=_HEADERS, timeout=60.0)

    def __enter__(self) -> ControlClient:
        self.post("/session", json=self._sign_in)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(httpx.HTTPError):  # the session expires by itself
            self._http.delete("/session")
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        return self._call("GET", path, params={k: v for k, v in params.items() if v is not None}).json()

    def post(self, path: str, **options: Any) -> Any:
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Any) -> Any:
        return self.request("PUT", path, **options)

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self._call(method, path, **options).json()

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def download(self, path: str) -> bytes:
        return self._call("GET", path).content

    def items(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """All items of a list, page by page."""
        cursor: str | None = None
        while True:
            page = self.get(path, **params, cursor=cursor)
            yield from page["items"]
            cursor = page.get("next")
            if cursor is None:
                return

    def tenant(self, name_or_id: str) -> dict[str, Any]:
        """The tenant with this name, or this id. Raises CommandError."""
        for tenant in self.items("/tenants"):
            if name_or_id in (tenant["name"], tenant["id"]):
                return tenant
        raise CommandError(f"there is no tenant {name_or_id!r}; see: tenora tenant list")

    def tenant_id(self, name_or_id: str) -> str:
        return str(self.tenant(name_or_id)["id"])

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url} cannot be reached ({error}); is the platform up? tenora status") from error
        if response.is_error:
            raise ApiError(response)
        return response


def connect() -> ControlClient:
    """The platform that this environment speaks of. Raises CommandError when there is none."""
    config = settings()
    url = os.environ.get("TENORA_URL")
    if url:
        password = os.environ.get("TENORA_PASSWORD")
        if not password:
            raise CommandError("TENORA_URL is set; set TENORA_USER and TENORA_PASSWORD too")
        return ControlClient(url.rstrip("/"), os.environ.get("TENORA_USER", config.admin_user), password)
    # Only a node that can run the embedded platform has what these import.
    from tenora_platform.stack.launch import open_home
    from tenora_platform.stack.state import is_running, read_state

    home = open_home(config)
    state = read_state(home)
    if state is None or not is_running(home):
        raise CommandError(f"no platform runs from {home.root}; start it with: tenora up --detach")
    password = config.admin_password.get_secret_value() or home.secrets().admin_password
    return ControlClient(state.urls["web"].rstrip("/"), config.admin_user, password)


def _message(response: httpx.Response) -> str:
    """The API's own words, with the report of a refused upload when there is one."""
    try:
        error = response.json()["error"]
        message = str(error["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.request.method} {response.request.url.path} answered {response.status_code}"
    param = error.get("param")
    where = f" ({param})" if param and param not in message else ""
    report = error.get("report") or {}
    lines = [f"  - {item['code']}: {item['message']}" for item in report.get("problems", [])]
    if len(lines) == 1 and lines[0].endswith(f": {message}"):
        lines = []  # the message said it
    return "\n".join([f"{message}{where}", *lines])
