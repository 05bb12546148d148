"""Names, errors, clock, file system and configuration: what every other layer stands on. Imports nothing of ours."""
