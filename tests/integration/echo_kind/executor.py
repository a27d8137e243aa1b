"""What the daemon does with an echo."""

from farm.jobs.executor import Executor


class EchoExecutor(Executor):
    """Runs attempts of kind echo."""

    def __init__(self, _parts):
        """It needs nothing of the daemon."""

    async def run(self, context):
        context.progress("speaking")
        return {"device": context.lease.device, "said": " ".join([context.spec.text] * context.spec.times)}
