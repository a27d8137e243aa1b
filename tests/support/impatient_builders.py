"""`farm.builders.server`, for which a builder is silent after two seconds instead of ten."""

import runpy

from farm.builders import table_policy

table_policy.SILENT_S = 2.0
runpy.run_module("farm.builders.server", run_name="__main__")
