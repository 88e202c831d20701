"""From a function in a cell to ranks and back: planning, packing, starting, watching, ending."""
