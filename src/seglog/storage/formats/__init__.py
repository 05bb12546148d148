"""The files of a log directory as bytes: names, layouts, encoders and decoders. No state, no locks."""
