"""`seglog perf`: the speed of the `engine` on this machine, and of `brokers`. `meter` counts and prints for both."""
