from typing import Any

# Calling a type makes a signature that returns it.
int64: Any
uint64: Any
void: Any
