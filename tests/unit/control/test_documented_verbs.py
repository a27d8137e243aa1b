"""docs/interfaces.md has every verb of the control socket."""

import re
from pathlib import Path

from tests.support.verbs import every_verb

TEXT = (Path(__file__).parents[3] / "docs" / "interfaces.md").read_text()


def test_every_verb_is_in_the_document(tmp_path):
    kinds = every_verb(tmp_path)
    assert {"status", "device.adopt", "job.submit", "store.prune"} <= set(kinds)
    assert [kind for kind in sorted(kinds) if not re.search(rf"`{re.escape(kind)}[` \n]", TEXT)] == []
