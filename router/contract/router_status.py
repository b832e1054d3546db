WINDOW_S = 60  # what a router's per-class window covers
