"""Floor 5. The job door: ZeroMQ server and client."""
