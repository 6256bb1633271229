"""The heads of the network: region proposals, regions of interest, semantic classes."""
