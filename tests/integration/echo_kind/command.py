"""`farm echo --on SELECTOR --text TEXT`."""

from farm.cli import work
from farm.cli.output import print_line
from farm.cli.spec_options import spec_options
from tests.integration.echo_kind import EchoSpec


@spec_options(EchoSpec)
def echo(fields, detach: work.Detach = False, wait: work.Wait = None) -> None:
    """Have a text given back."""
    with work.client() as farm:
        spec = EchoSpec.from_wire(fields)
        _, outcomes = work.submit_and_wait(farm, spec, detach=detach, wait=wait, json=False)
    for outcome in outcomes:
        print_job(outcome, None)


def print_job(outcome, _record_set):
    print_line(f"{outcome.device} said {outcome.result['said']}")
