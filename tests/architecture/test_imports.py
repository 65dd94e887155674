"""The import rules of the house: what each package may depend on, and what its processes may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = {
    "adapters/tenora_adapters": {"tenora_adapters"},
    "engine/tenora_engine": {"tenora_engine", "tenora_adapters"},
    "platform/tenora_platform": {"tenora_platform", "tenora_migrations", "tenora_adapters", "tenora_engine.wire"},
}


def sources(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files, f"no sources in {folder}"
    return files


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def may_import(module: str, allowed: set[str]) -> bool:
    if not module.startswith("tenora_"):
        return True
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize(("folder", "allowed"), PACKAGES.items())
def test_a_package_imports_only_what_the_design_allows(repository: Path, folder: str, allowed: set[str]) -> None:
    broken = [
        f"{file.relative_to(repository)}: {module}"
        for file in sources(repository / folder)
        for module in imported_modules(file)
        if not may_import(module, allowed)
    ]
    assert broken == []


def test_the_rule_itself_sees_a_forbidden_import() -> None:
    allowed = PACKAGES["platform/tenora_platform"]
    assert may_import("tenora_engine.wire.Submit", allowed)
    assert not may_import("tenora_engine.scheduler.Scheduler", allowed)
    assert not may_import("tenora_engine", allowed)


def test_import_linter_contracts_hold(repository: Path) -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=repository, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_nothing_shadows_pythons_own_platform_module(repository: Path) -> None:
    for folder in ("platform", "tests", "tests/platform"):
        assert not (repository / folder / "__init__.py").exists()
    assert not (repository / "tests" / "platform").exists()


def import_with_blocked(module: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    """Import a module in a fresh interpreter in which `blocked` cannot be imported."""
    program = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked) + f"import {module}\n"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "blocked"),
    [
        ("tenora_platform.gateway.app", ("torch", "triton", "transformers")),
        ("tenora_platform.control.app", ("torch", "triton", "transformers")),
        ("tenora_platform.worker.app", ("torch", "triton", "transformers")),
        ("tenora_platform.cli.main", ("torch", "fastapi", "sqlalchemy", "zmq", "celery", "openai")),
        ("tenora_engine.scheduler", ("torch", "sqlalchemy", "fastapi", "zmq")),
        ("tenora_engine.kv.block_pool", ("torch", "sqlalchemy", "fastapi", "zmq")),
        ("tenora_engine.wire", ("torch", "sqlalchemy", "fastapi", "zmq")),
        # xgrammar imports transformers; that our code does not is import-linter's to see.
        ("tenora_engine.server", ("sqlalchemy", "fastapi", "celery", "redis", "peft")),
        ("tenora_adapters.validate", ("torch", "sqlalchemy", "fastapi", "zmq")),
    ],
)
def test_a_node_needs_only_its_own_extra(module: str, blocked: tuple[str, ...]) -> None:
    result = import_with_blocked(module, *blocked)
    assert result.returncode == 0, result.stderr


def test_blocking_an_import_really_blocks_it() -> None:
    assert import_with_blocked("torch", "torch").returncode != 0


FORBIDDEN_CALLS = {"torch.load", "pickle.load", "pickle.loads", "eval", "exec", "os.system", "yaml.load"}


def test_nothing_in_the_product_unpickles_or_evaluates(repository: Path) -> None:
    """UPL-01: no unpickler is ever called, not even with `weights_only`; nothing is extracted wholesale."""
    found = []
    for folder in PACKAGES:
        for file in sources(repository / folder):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    if name in FORBIDDEN_CALLS or name.endswith((".extractall", ".extract")):
                        found.append(f"{file.relative_to(repository)}:{node.lineno} {name}")
                if isinstance(node, ast.Import | ast.ImportFrom) and "pickle" in ast.unparse(node):
                    found.append(f"{file.relative_to(repository)}:{node.lineno} pickle")
    assert found == []
