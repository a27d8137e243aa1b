"""Kind `sweep`: one build under several numbers of threads and choices of cores, in turns, with a recommended one."""
