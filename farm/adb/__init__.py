"""Floor 2-3. Everything that speaks to an adb server."""
