"""The report of an upload, for a person to act on: what is wrong with which module, and what to do."""

from __future__ import annotations

import re
from typing import Any, Final

from rich.markup import escape

from tenora_platform.cli.terminal import CommandError, errors, out, say, table

# What to do, by the code of a problem. Where the message says it already there is no entry.
_REMEDIES: Final = {
    "base_mismatch": "Train it on the base that is served, or have its name accepted: tenora base accept",
    "base_unconfirmed": "If it was trained on the base that is served, add --confirm-base.",
    "changed_base_weights": "Save it again with modules_to_save, or without the embedding layers.",
    "check_did_not_end": "Upload it again; if that does not help, look at the worker's log.",
    "damaged": "Upload it again.",
    "invalid_adapter_config": "Mend adapter_config.json, or save the adapter again with PEFT's save_pretrained.",
    "invalid_safetensors": "The weights file is damaged: save the adapter again with PEFT's save_pretrained.",
    "missing_file": "Send the folder that PEFT's save_pretrained wrote, or an archive of it.",
    "missing_tensors": "Config and weights are not of one adapter: save both again with save_pretrained.",
    "module_too_large": "Leave the module out of modules_to_save.",
    "no_modules": "Name modules that this base has in target_modules.",
    "non_finite": "The training diverged: take an earlier checkpoint, or train with a lower learning rate.",
    "overflow": "The weights are too large: take an earlier checkpoint, or a lower lora_alpha.",
    "quota_exceeded": "Delete versions or adapters (tenora adapter delete), or ask for a larger quota.",
    "scaling_out_of_range": "Choose another lora_alpha or r.",
    "unexpected_tensors": "Train only what the config names, or name in target_modules what was trained.",
    "unsupported_feature": "Train it without this feature; docs/adapters.md lists what is served.",
    "wrong_checksum": "The file changed while it was sent: upload it again.",
    "wrong_shape": "Config and weights are not of one adapter or not of this base: check r and rank_pattern.",
}
_MODULE: Final = re.compile(r"(?:base_model\.model\.)?(?P<module>.+?)\.(?:lora_\w+|bias|weight)(?:\..*)?")


def show_rejection(title: str, problems: list[dict[str, Any]]) -> CommandError:
    """Print the problems, module by module, to stderr; the error to end the command with."""
    for problem in problems:
        errors.print(f"[bold red]{escape(problem['code'])}[/]{_where(problem.get('param'))}", highlight=False)
        errors.print(f"  what is wrong: {escape(problem['message'])}", highlight=False, soft_wrap=True)
        if remedy := _REMEDIES.get(problem["code"]):
            errors.print(f"  what to do:    {escape(remedy)}", highlight=False, soft_wrap=True)
    return CommandError(title)


def show_acceptance(version: dict[str, Any], *, modules: bool) -> None:
    """Warnings, and with `modules` what each module adds."""
    report = version["report"]
    for warning in report.get("warnings", []):
        say(f"[yellow]warning[/] {escape(warning['code'])}: {escape(warning['message'])}")
    if modules and report.get("modules"):
        rows = [
            (m["module"], m["rank"], f"{m['scaling']:g}", "-" if m["delta_norm"] is None else f"{m['delta_norm']:.4g}")
            for m in report["modules"]
        ]
        out.print(table(["module", "rank", "scaling", "norm of what it adds"], rows))


def _where(param: str | None) -> str:
    """The module that a tensor belongs to, or whatever else it is about."""
    if not param:
        return ""
    found = _MODULE.fullmatch(param)
    return f" in module {escape(found['module'])}" if found else f" in {escape(param)}"
