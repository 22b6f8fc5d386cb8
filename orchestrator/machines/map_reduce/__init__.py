"""The machine `map_reduce`: read each document, then combine what was found."""
