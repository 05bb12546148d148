"""Transactions: one transactional id (`transaction`), those of a partition of ``__transaction_state`` (`shard`), their
records (`log_records`), and the coordinator that writes records and markers (`coordinator`, `markers`)."""
