"""Id maps as runs, and histograms of pairs of ids: numpy and a C library, no torch."""
