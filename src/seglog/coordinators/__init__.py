"""Consumer groups: their members, their committed offsets, and the topic that stores both."""
