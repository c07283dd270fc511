"""Versions of Ascend's software: what came before a release counts as older than it."""

from __future__ import annotations

import re

Release = tuple[int, int, int]
_NUMBERS = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?")
_BEFORE_RELEASE = re.compile(r"rc|alpha|beta|dev|(?:^|[.-])t[0-9]", re.IGNORECASE)


def older(version: str, release: Release) -> bool | None:
    """Whether ``version``, such as 9.1.0, 8.2.RC2 or 8.0.T63, is older than ``release``; None if it cannot be read."""
    found = _NUMBERS.match(version)
    if found is None:
        return None
    numbers = tuple(int(number or 0) for number in found.groups())
    if numbers != release:
        return numbers < release
    return _BEFORE_RELEASE.search(version, found.end()) is not None


def dotted(release: Release) -> str:
    """A release as people write it."""
    return ".".join(map(str, release))
