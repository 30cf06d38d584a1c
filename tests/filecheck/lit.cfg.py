"""Configuration of `lit tests/filecheck`: every `.mlir` file here is a test, run by its RUN lines."""

import sys
from pathlib import Path

import lit.formats
import lit.LitConfig
import lit.TestingConfig

config: lit.TestingConfig.TestingConfig
lit_config: lit.LitConfig.LitConfig

# The tools beside the interpreter that runs lit: those of the environment hpir is installed in.
tools = Path(sys.executable).parent
missing = [tool for tool in ("hp-opt", "filecheck") if not (tools / tool).exists()]
if missing:
    lit_config.fatal(f"{' and '.join(missing)} not found in {tools}; install with: pip install -e '.[test]'")

config.name = "hpir"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parent.parent.parent / "build" / "filecheck")
config.environment["PATH"] = f"{tools}:{config.environment['PATH']}"
config.environment["PYTHONDONTWRITEBYTECODE"] = "1"
# Both spellings work in RUN lines.
config.substitutions.append(("FileCheck", "filecheck"))
config.substitutions.append(("%python", sys.executable))
