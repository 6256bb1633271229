"""Maps of ids and classes without torch and without the core: formats, scores, preparation, reports, drawing."""
