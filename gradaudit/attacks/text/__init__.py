"""Which tokens and sequences an update gives away: embedding rows, spans of inputs, label rows."""
