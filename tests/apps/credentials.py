"""Credential providers as users write them for IAM or Entra ID."""

from __future__ import annotations

import os

from redis.credentials import CredentialProvider


class Provider(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return os.environ.get("PROVIDED_USER", "once"), os.environ.get("PROVIDED_PASSWORD", "s3cret-word")


class Away(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise LookupError("the service of tokens is away: https://me:s3cret-word@tokens.example")


class Exits(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        raise SystemExit("no token of https://me:s3cret-word@tokens.example")


class Unmade(CredentialProvider):
    def __init__(self) -> None:
        raise RuntimeError("no region: https://me:s3cret-word@tokens.example")


class ExitsUnmade(CredentialProvider):
    def __init__(self) -> None:
        raise SystemExit(3)


class NoProvider:
    pass
