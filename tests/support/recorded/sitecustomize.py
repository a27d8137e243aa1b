"""On the path of a daemon under test: every secret that it makes is written to $RECORDED_SECRETS, with its maker."""

import os
import secrets
import sys
from functools import wraps
from pathlib import Path


def _recorded(make):
    @wraps(make)
    def made(*given):
        secret = make(*given)
        with Path(os.environ["RECORDED_SECRETS"]).open("a") as file:
            file.write(f"{sys._getframe(1).f_globals['__name__']} {secret}\n")
        return secret

    return made


if "RECORDED_SECRETS" in os.environ:
    secrets.token_hex = _recorded(secrets.token_hex)
    secrets.token_urlsafe = _recorded(secrets.token_urlsafe)
