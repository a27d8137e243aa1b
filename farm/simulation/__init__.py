"""Virtual phones: adbd's side of the adb transport. Imported by farm demo and tests only."""
