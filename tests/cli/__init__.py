"""What a user types, and what comes back."""
