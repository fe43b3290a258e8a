"""Versions of operators of other packages, which let graphs that call them be kept on disk."""

from __future__ import annotations

import re

from eductor.errors import BadOption

_stated: dict[str, str] = {}


def state_operator_version(name: str, version: str) -> None:
    """States the version of an operator of yours, so that graphs that call it are kept on disk.

    It is given as `"namespace::operator"`. Change its version when you change its kernels, its fake kernel, its autograd formula,
    or what they read.
    """
    if not (isinstance(name, str) and re.fullmatch(r"\w+::\w+", name)):
        raise BadOption(f"state_operator_version({name!r}, ...): the name has the form 'namespace::operator'.")
    if not (isinstance(version, str) and version):
        raise BadOption(f"state_operator_version({name!r}, {version!r}): the version is a text that is not empty.")
    _stated[name] = version


def stated_versions() -> dict[str, str]:
    """The stated versions by the names of operators, `namespace::operator`."""
    return dict(sorted(_stated.items()))
