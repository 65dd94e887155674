"""What can be wrong with an adapter that somebody hands us.

    AdapterRejected          the upload is at fault; nothing of it is kept
    +-- NameRejected         the adapter's name is not allowed
    +-- PackageRejected      the file, archive or set of files
    |   +-- PackageTooLarge      a size, count or ratio is above its limit
    |   +-- FormatUnsupported    not a format that is read here: a pickle, say
    +-- ConfigRejected       adapter_config.json: malformed, out of range, or a feature that is not implemented
    +-- WeightsRejected      adapter_model.safetensors: header, names, shapes
    +-- BaseRejected         trained for another base model
    +-- NumbersRejected      the values themselves: NaN, infinity, overflow

`code` is for programs, `message` for the person who uploaded (safe to show), `param` names the field, tensor or member.
"""

from __future__ import annotations

from typing import ClassVar


class AdapterRejected(Exception):
    """The adapter cannot be served as it is. Another try with the same bytes gives the same answer."""

    stage: ClassVar[str] = "validate"
    default_code: ClassVar[str] = "adapter_rejected"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code


class NameRejected(AdapterRejected):
    default_code = "invalid_adapter_name"


class PackageRejected(AdapterRejected):
    stage = "package"
    default_code = "invalid_package"


class PackageTooLarge(PackageRejected):
    default_code = "package_too_large"


class FormatUnsupported(PackageRejected):
    default_code = "unsupported_format"


class ConfigRejected(AdapterRejected):
    default_code = "invalid_adapter_config"


class WeightsRejected(AdapterRejected):
    default_code = "invalid_adapter_weights"


class BaseRejected(AdapterRejected):
    default_code = "base_mismatch"


class NumbersRejected(AdapterRejected):
    stage = "numbers"
    default_code = "non_finite"
