"""Kind `sustain`: a model that runs without a pause for minutes: when the phone throttles, and how fast it stays."""
