"""Programs of a virtual phone: POSIX sh, with @SHELL@ and @ROOT@ filled in by `system_image`."""
