"""`seglog explain`: why data is still there, when it goes, and why a reader sees what it sees.

`sentences` turns the decisions of retention and the cleaner into words, `reading` and `lag` what readers get; all three
are pure. `partitions` reads directories, `brokers` asks a cluster, `command` puts both on the screen.
"""
