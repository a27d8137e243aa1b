"""A phone's health in one adb round trip: the command, and the pure parsers of what each of its sections prints."""
