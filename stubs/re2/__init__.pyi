class error(Exception): ...  # noqa: N801, N818

class Options:
    max_mem: int
    log_errors: bool
    never_capture: bool

class _Regexp:
    @property
    def pattern(self) -> str: ...
    def fullmatch(self, text: str) -> object | None: ...

def compile(pattern: str, options: Options | None = None) -> _Regexp: ...  # noqa: A001
