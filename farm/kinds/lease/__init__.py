"""Kind `lease`: a phone for a person, with a TVM key and an adb server that shows only that phone."""
