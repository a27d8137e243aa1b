"""Floor 1. Statistics over samples: pure."""
