"""Words that have a colour: states of devices, jobs, attempts, bundles and hosts, verdicts and answers.

The page has a colour for each tone, and so has a terminal (farm.cli.output). The word stands beside the colour.
"""

TONES = {
    "ready": "good", "busy": "busy", "leased": "busy", "quarantined": "bad", "recovering": "warn", "offline": "warn",
    "unauthorized": "warn", "gone": "off", "draining": "hold", "maintenance": "hold",
    "identifying": "going", "provisioning": "going", "pushing": "going", "starting": "going", "checking": "going",
    "cleaning": "going", "probing": "going",
    "warm": "warm", "cooling": "warm", "hot": "bad",
    "running": "busy", "queued": "going", "waiting": "going", "blocked": "hold", "held": "hold", "done": "good",
    "failed": "bad", "cancelled": "off", "yielded": "hold", "interrupted": "warn",
    "trusted": "good", "suspect": "warn", "rejected": "poor",
    "faster": "good", "slower": "poor", "same": "good", "cannot tell": "warn",
    "current": "good", "refused": "bad", "damaged": "bad", "kept": "off",
    "ok": "good", "drained": "hold", "silent": "warn", "lost": "bad", "stopped": "off", "removed": "off",
    "connected": "good", "active": "good", "out": "hold",
}  # fmt: skip
UNKNOWN = "going"  # a state of another release


def tone(word: str, unknown: str = UNKNOWN) -> str:
    """The tone of a word; a state may have more behind a comma."""
    return TONES.get(word.partition(",")[0], unknown)
