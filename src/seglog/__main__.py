import sys

from seglog.cli.main import main

sys.exit(main())
