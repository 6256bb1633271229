"""What `predict` reads: photos in files, folders, lists, videos, tar shards and at URLs."""
