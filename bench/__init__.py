"""Us beside the other side, turn about, as ratios of medians: `make bench`."""
