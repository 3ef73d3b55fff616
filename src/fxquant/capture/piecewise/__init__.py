"""Models that do not trace as a whole: regions inside of code that runs as written."""
