CACHE_DIR: str
CPU_NAME: str | None
CPU_FEATURES: str | None
