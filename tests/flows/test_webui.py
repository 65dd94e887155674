"""The web UI in a real browser against the whole real platform: what an administrator does on the first day."""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

if TYPE_CHECKING:
    from tests.flows.conftest import RunningPlatform

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Chromium logs every failing answer; these are what signing in is for, and what a refused or a cut upload should get.
EXPECTED_COMPLAINTS = re.compile(
    r"Failed to load resource: (.* (401 \(Unauthorized\)|400 \(Bad Request\))|net::ERR_CONNECTION_RESET)"
)

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def context(browser: Browser, platform: RunningPlatform) -> Iterator[BrowserContext]:
    """One browser profile for all tests, so that the UI's files are fetched once; each test begins signed out."""
    context = browser.new_context(base_url=platform.url, viewport={"width": 1280, "height": 800})
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, request: pytest.FixtureRequest, repository: Path) -> Iterator[Page]:
    """A page of nobody yet. The test fails when the page complains; what it looked like when it failed is kept."""
    context.clear_cookies()
    page = context.new_page()
    complaints: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not EXPECTED_COMPLAINTS.search(message.text):
            complaints.append(f"{message.text} ({message.location.get('url')})")

    page.on("console", listen)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    failed_before = request.session.testsfailed
    yield page
    if request.session.testsfailed > failed_before or complaints:
        picture = repository / "build" / "webui-failures" / f"{request.node.name}.png"
        page.screenshot(path=picture, full_page=True)
        print(f"\nwhat the page looked like: {picture}")
    page.close()
    assert complaints == []


@pytest.fixture
def admin(page: Page, platform: RunningPlatform) -> Page:
    """The page, signed in; how a person does that has a test of its own."""
    credentials = {"username": platform.admin_user, "password": platform.admin_password}
    page.request.post("/api/v1/session", data=credentials, headers={"X-Tenora-Request": "1"})
    page.goto("/")
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    return page


@pytest.fixture
def tenant_page(admin: Page) -> Page:
    """The page of a tenant that was just created through the UI."""
    name = f"ui-{uuid.uuid4().hex[:10]}"
    admin.get_by_role("button", name="New tenant").click()
    admin.get_by_label("Name", exact=True).fill(name)
    admin.get_by_label("Display name").fill(f"Tenant {name}")
    admin.get_by_label("Time zone").fill("Europe/Berlin")
    admin.get_by_role("button", name="Create tenant").click()
    expect(admin.get_by_role("heading", name=f"Tenant {name}", level=1)).to_be_visible()
    return admin


def sign_in(page: Page, username: str, password: str) -> None:
    page.get_by_label("User name").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Parts of").get_by_role("link", name=name).click()


def make_key(page: Page, name: str) -> str:
    """Creates a key on the tenant's page; the key itself."""
    open_tab(page, "Keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create key").click()
    key = page.get_by_test_id("new-key").inner_text()
    page.get_by_role("button", name="I have copied it").click()
    return key


def upload(page: Page, name: str, files: list[Path]) -> None:
    open_tab(page, "Adapters")
    page.get_by_role("button", name="Upload adapter").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Files").set_input_files(files)
    page.get_by_role("button", name="Upload", exact=True).click()


def models_status(platform: RunningPlatform, key: str) -> int:
    return httpx.get(f"{platform.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code


def wait_until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.1)


def zipped(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as package:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            package.write(folder / name, name)
    return archive


def test_a_wrong_password_is_refused_with_the_apis_words_and_a_right_one_leads_where_one_was_going(
    page: Page, platform: RunningPlatform
) -> None:
    page.goto("/audit")
    expect(page).to_have_url(re.compile(r"/sign-in\?back="))
    sign_in(page, platform.admin_user, "not the password")
    expect(page.get_by_role("alert")).to_have_text("The user name or the password is wrong.")

    sign_in(page, platform.admin_user, platform.admin_password)
    expect(page.get_by_role("heading", name="Audit")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/audit$"))


def test_a_session_that_ended_leads_to_signing_in_and_back(
    tenant_page: Page, context: BrowserContext, platform: RunningPlatform
) -> None:
    context.clear_cookies()
    open_tab(tenant_page, "Quota")
    expect(tenant_page.get_by_role("heading", name="Sign in to Tenora")).to_be_visible()
    sign_in(tenant_page, platform.admin_user, platform.admin_password)
    expect(tenant_page.get_by_label("Requests per minute", exact=True)).to_be_visible()


def test_a_key_is_shown_once_works_at_once_and_can_be_revoked(tenant_page: Page, platform: RunningPlatform) -> None:
    key = make_key(tenant_page, "laptop")
    assert key.startswith("tnr_")
    row = tenant_page.get_by_role("row", name="laptop")
    expect(row).to_contain_text("active")
    tenant_page.reload()
    expect(row).to_be_visible()
    assert key not in tenant_page.content()
    assert models_status(platform, key) == 200

    row.get_by_role("button", name="Revoke").click()
    tenant_page.get_by_role("button", name="Revoke key").click()
    expect(row).to_contain_text("revoked")
    wait_until(lambda: models_status(platform, key) == 401)


def test_an_uploaded_adapter_becomes_ready_answers_and_its_usage_is_charted(
    tenant_page: Page, platform: RunningPlatform, examples: Path, tmp_path: Path
) -> None:
    key = make_key(tenant_page, "chat")
    upload(tenant_page, "pirate", [zipped(examples / "pirate", tmp_path / "pirate.zip")])
    version = tenant_page.get_by_role("listitem").filter(has_text="Version 1")
    expect(version).to_contain_text("ready", timeout=60_000)
    expect(version).to_contain_text("serves requests")
    expect(version).to_contain_text(re.compile(r"\d+ modules \(.*\), rank \d+"))
    model = tenant_page.get_by_text(re.compile(r"^[\w.-]+:pirate$")).inner_text()

    client = OpenAI(base_url=f"{platform.url}/v1", api_key=key, max_retries=0, timeout=120)
    wait_until(lambda: model in {served.id for served in client.models.list()})
    question = [{"role": "user", "content": "Where is the harbour?"}]
    answer = client.chat.completions.create(model=model, messages=question, max_tokens=8)  # type: ignore[call-overload]
    tenant_id = tenant_page.url.split("/")[4]
    with platform.control() as control:
        wait_until(lambda: control.get(f"/tenants/{tenant_id}/usage")["items"])

    open_tab(tenant_page, "Usage")
    totals = tenant_page.get_by_role("table", name="Totals by model").get_by_role("row", name=model)
    expect(totals).to_contain_text(str(answer.usage.completion_tokens))
    expect(tenant_page.locator(".recharts-bar-rectangle path").first).to_be_visible()
    tenant_page.get_by_role("button", name="last month").click()
    expect(tenant_page.get_by_text("Nothing was used in these days")).to_be_visible()
    expect(tenant_page).to_have_url(re.compile(r"from=\d{4}-\d{2}-01&to="))


def test_a_broken_upload_says_what_is_wrong_and_leaves_nothing(
    tenant_page: Page, examples: Path, tmp_path: Path
) -> None:
    """ADP-02, as a person meets it: the rank in the configuration is not the tensors'."""
    config = json.loads((examples / "pirate" / "adapter_config.json").read_text(encoding="utf-8"))
    broken = tmp_path / "adapter_config.json"
    broken.write_text(json.dumps({**config, "r": config["r"] * 2}), encoding="utf-8")
    upload(tenant_page, "broken", [broken, examples / "pirate" / "adapter_model.safetensors"])

    findings = tenant_page.get_by_role("list", name="What validation found").get_by_role("listitem")
    expect(findings.first).to_contain_text("lora_")
    tenant_page.get_by_role("button", name="Cancel").click()
    expect(tenant_page.get_by_text("No adapters yet")).to_be_visible()


def test_versions_are_tried_on_a_share_promoted_rolled_back_retired_and_deleted(
    tenant_page: Page, examples: Path, tmp_path: Path
) -> None:
    """ADP-16, as a person meets it."""
    first, second = (tenant_page.get_by_role("listitem").filter(has_text=f"Version {number}") for number in (1, 2))

    def choose(version: Locator, action: str, confirmation: str) -> None:
        version.get_by_role("button", name=action).click()
        tenant_page.get_by_role("alertdialog").get_by_role("button", name=confirmation).click()

    upload(tenant_page, "bot", [zipped(examples / "pirate", tmp_path / "pirate.zip")])
    expect(first).to_contain_text("serves requests", timeout=60_000)
    tenant_page.get_by_role("button", name="New version").click()
    tenant_page.get_by_role("checkbox", name="Serve it as soon as it is ready").uncheck(force=True)
    tenant_page.get_by_label("Files").set_input_files([zipped(examples / "json", tmp_path / "json.zip")])
    tenant_page.get_by_role("button", name="Upload", exact=True).click()
    expect(second).to_contain_text("ready", timeout=60_000)
    expect(first).to_contain_text("serves requests")

    second.get_by_role("button", name="Canary").click()
    share = tenant_page.get_by_role("slider")
    expect(share).to_have_value("10")
    share.press("ArrowRight")
    tenant_page.get_by_role("button", name="Start canary").click()
    expect(second).to_contain_text("serves 11 in 100 requests")
    expect(first).to_contain_text("serves 89 in 100 requests")

    choose(second, "Promote", "Promote")
    expect(second).to_contain_text("serves requests")
    expect(second.get_by_role("button")).to_have_count(0)
    tenant_page.get_by_role("button", name="Roll back").click()
    tenant_page.get_by_role("alertdialog").get_by_role("button", name="Roll back").click()
    expect(first).to_contain_text("serves requests")

    choose(second, "Retire", "Retire version")
    expect(second).to_contain_text("retired")
    choose(second, "Delete version", "Delete version")
    expect(second).to_have_count(0)
    expect(first).to_contain_text("serves requests")


def test_an_adapter_that_names_no_base_is_confirmed_by_who_uploads_it(
    tenant_page: Page, examples: Path, tmp_path: Path
) -> None:
    """ADP-13: what to do is said, and can be done on the spot."""
    config = json.loads((examples / "pirate" / "adapter_config.json").read_text(encoding="utf-8"))
    nameless = tmp_path / "adapter_config.json"
    nameless.write_text(json.dumps({**config, "base_model_name_or_path": None}), encoding="utf-8")
    upload(tenant_page, "nameless", [nameless, examples / "pirate" / "adapter_model.safetensors"])
    expect(tenant_page.get_by_text("What to do: If it was trained on the base that is served")).to_be_visible()
    tenant_page.get_by_role("checkbox", name="It was trained on the base model").check(force=True)
    tenant_page.get_by_role("button", name="Upload", exact=True).click()
    version = tenant_page.get_by_role("listitem").filter(has_text="Version 1")
    expect(version).to_contain_text("ready", timeout=60_000)
    expect(version).to_contain_text("base_confirmed")
    expect(version).to_contain_text("serves requests")
    open_tab(tenant_page, "Adapters")
    expect(tenant_page.get_by_text(re.compile(r"^1 adapter, [\d.]+ [KM]iB stored$"))).to_be_visible()


def test_a_cut_upload_goes_on_by_itself_and_a_cancelled_one_when_chosen_again(
    tenant_page: Page, examples: Path, tmp_path: Path
) -> None:
    begun: list[str] = []
    tenant_page.on("request", lambda request: begun.append(request.url) if is_new_upload(request) else None)
    chunks = re.compile(r"/uploads/[0-9a-f-]+$")
    cuts = 0

    def cut(route: Route) -> None:
        nonlocal cuts
        if route.request.method == "PATCH":
            cuts += 1
            route.abort("connectionreset")
        else:
            route.continue_()

    archive = zipped(examples / "pirate", tmp_path / "pirate.zip")
    tenant_page.route(chunks, cut)
    upload(tenant_page, "pirate", [archive])
    while cuts < 2:
        tenant_page.wait_for_timeout(50)  # lets the browser be heard, which sleeping does not
    tenant_page.get_by_role("button", name="Cancel").click()
    tenant_page.unroute(chunks)

    tenant_page.route(chunks, cut, times=1)
    upload(tenant_page, "pirate", [archive])
    version = tenant_page.get_by_role("listitem").filter(has_text="Version 1")
    expect(version).to_contain_text("ready", timeout=60_000)
    assert len(begun) == 1


def is_new_upload(request: Request) -> bool:
    return request.method == "POST" and request.url.endswith("/uploads")


def test_a_deleted_adapter_is_gone_and_its_name_free(tenant_page: Page, examples: Path, tmp_path: Path) -> None:
    archive = zipped(examples / "pirate", tmp_path / "pirate.zip")
    upload(tenant_page, "pirate", [archive])
    tenant_page.get_by_role("button", name="Delete").click()
    tenant_page.get_by_role("button", name="Delete adapter").click()
    expect(tenant_page.get_by_text("No adapters yet")).to_be_visible()
    upload(tenant_page, "pirate", [archive])
    expect(tenant_page.get_by_role("listitem").filter(has_text="Version 1")).to_be_visible()


def test_unlimited_and_blocked_are_two_quotas(tenant_page: Page) -> None:
    """QTA-06, as a person sets it."""
    open_tab(tenant_page, "Quota")
    for label, value in (("Requests per minute", "0"), ("Tokens per minute", "120000")):
        unlimited = tenant_page.get_by_role("checkbox", name=f"{label}: unlimited")
        expect(unlimited).to_be_checked()
        unlimited.uncheck(force=True)  # the kit draws its own box over the browser's
        tenant_page.get_by_label(label, exact=True).fill(value)
    expect(tenant_page.get_by_text("0 blocks every request.")).to_be_visible()
    tenant_page.get_by_role("button", name="Save quota").click()
    expect(tenant_page.get_by_text("Quota saved")).to_be_visible()
    tenant_page.reload()
    expect(tenant_page.get_by_label("Requests per minute", exact=True)).to_have_value("0")
    expect(tenant_page.get_by_label("Tokens per minute", exact=True)).to_have_value("120000")


def test_a_month_is_exported_and_downloaded(tenant_page: Page) -> None:
    open_tab(tenant_page, "Exports")
    tenant_page.get_by_role("button", name="New export").click()
    tenant_page.get_by_role("button", name="Create export").click()
    row = tenant_page.get_by_role("table", name="Billing exports").get_by_role("row").nth(1)
    expect(row).to_contain_text("ready")
    for link, ending in (("CSV", ".csv"), ("Manifest", ".json")):
        with tenant_page.expect_download() as download:
            row.get_by_role("link", name=link).click()
        assert download.value.suggested_filename.endswith(ending)
        assert Path(download.value.path()).stat().st_size > 0


def test_a_tenant_is_edited_disabled_and_the_audit_says_so(tenant_page: Page) -> None:
    tenant_page.get_by_role("button", name="Edit").click()
    tenant_page.get_by_label("Time zone").fill("Mars/Olympus")
    tenant_page.get_by_role("button", name="Save").click()
    expect(tenant_page.get_by_text("must be an IANA time zone")).to_be_visible()
    tenant_page.get_by_label("Time zone").fill("Asia/Tokyo")
    tenant_page.get_by_role("button", name="Save").click()
    expect(tenant_page.get_by_text(re.compile("· Asia/Tokyo"))).to_be_visible()

    tenant_page.get_by_role("button", name="Disable").click()
    tenant_page.get_by_role("alertdialog").get_by_role("button", name="Disable").click()
    expect(tenant_page.get_by_role("button", name="Enable")).to_be_visible()

    tenant_page.get_by_role("link", name="Audit").click()
    expect(tenant_page.get_by_role("row").nth(1)).to_contain_text("tenant.")


def test_the_engines_page_shows_the_replica(admin: Page) -> None:
    admin.get_by_role("link", name="Engines").click()
    expect(admin.get_by_role("heading", name="engine-0")).to_be_visible()
    expect(admin.get_by_text(re.compile(r"of [\d,]+ blocks")).first).to_be_visible()
