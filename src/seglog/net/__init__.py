"""Sockets: frames in, frames out, and limits on both. Nothing here knows what is in a frame."""
