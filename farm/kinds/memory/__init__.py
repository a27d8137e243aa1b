"""Kind `memory`: how long each phase of a model's life takes on a phone, and how much memory it needs there."""
