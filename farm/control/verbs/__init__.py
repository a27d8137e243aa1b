"""What the daemon can be asked, a module for each subject."""
