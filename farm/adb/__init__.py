"""Floor 2. Everything farm says to an adb server, and the adb server itself."""
