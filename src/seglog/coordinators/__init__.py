"""Groups: who is in them, what they have read, and the topic in which that is kept."""
