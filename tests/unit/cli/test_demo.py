"""What `farm demo` times, on a host that takes the processor from a phone now and then, and what it prints."""

import numpy as np
import pytest

from farm.cli import demo
from farm.measure.assess import assess
from farm.measure.conditions import Verdict
from farm.measure.series import series

RUN_S, SLICE_S, EVERY_S, SAMPLES = 1e-4, 4e-3, 0.07, 40


@pytest.mark.parametrize(("runs", "rejected"), [(100, True), (demo.RUNS, False)])
def test_slices_that_the_host_takes_reject_short_samples_only(runs, rejected):
    random = np.random.default_rng(1)
    lasts_s = runs * RUN_S
    slices = np.diff(np.arange(SAMPLES + 1) * lasts_s // EVERY_S)  # in each sample
    sample_s = RUN_S * random.normal(1, 0.005, SAMPLES) + slices * SLICE_S / runs
    reference_s = 1e-3 * random.normal(1, 0.005, SAMPLES)
    found = assess(series(sample_s, np.arange(SAMPLES) * lasts_s, reference_s))
    assert (found.verdict is Verdict.REJECTED) is rejected


def test_a_step_of_a_phone_is_printed_once(capsys):
    show = demo._step_printer()
    for phone, sent in (("p1", 1), ("p1", 2), ("p2", 1), ("p1", 3), ("p1", 600), ("p1", 1000)):
        show({"subject": phone, "kind": "device.pushing", "data": {"sent_bytes": sent, "total_bytes": 1000}})
    assert capsys.readouterr().err.splitlines() == [
        "  p1: pushing 0%", "  p2: pushing 0%", "  p1: pushing 60%", "  p1: pushing 100%",
    ]  # fmt: skip
