"""What of a worker's output is kept."""

from farm.jobs.worker_output import without_harmless

WARNING = '[01:20:10] /src/post_order_apply.cc:99: Warning: Unknown schedule rule "meta_schedule.pool_avg"'


def test_what_tvm_always_says_is_not_kept():
    assert without_harmless(WARNING) == ""
    assert without_harmless(f"one\n{WARNING}\ntwo") == "one\ntwo"
    assert without_harmless("Warning: Unknown rule") == "Warning: Unknown rule"
