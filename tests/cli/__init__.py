"""Tests of the command line: its options, output and exit codes."""
