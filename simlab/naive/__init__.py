"""The famous mistakes, one file each: the real scheduler with one decision replaced."""
