"""Published values of Tutti and of the tiers next to it, by tier. The model and its event-by-event simulation are
tested against them.
Figure 8 and table 1 of arXiv 2605.03375, LEval at 1.5 requests/s.
"""

TITLES = {
    "hbm": "HBM only",
    "dram": "LMCache-DRAM",
    "ssd": "LMCache-SSD",
    "ssd-gds": "LMCache-GDS",
    "ssd-tutti": "Tutti",
}
FITTED_TTFT = ("hbm", "ssd-gds")  # tiers whose TTFT was used to fit the length and the set-up
TTFT_S = {"hbm": 7.2, "ssd": 6.5, "ssd-gds": 3.9, "dram": 2.8, "ssd-tutti": 0.87}  # mean, figure 8
HITS = {"hbm": 8.0, "dram": 53.0, "ssd-tutti": 84.0}  # %, table 1
LOOGLE_HITS = {"hbm": 4.0, "dram": 24.0, "ssd-tutti": 86.0}  # %
RATES = {"dram": 1.0, "ssd-gds": 0.75, "ssd-tutti": 1.5}  # requests/s up to which the mean TTFT is within 1 s, figure 8
TTFT_BELOW = {"dram": 69.1, "ssd-gds": 78.3}  # % of Tutti's mean TTFT
MORE_RATE = {"dram": 50.0, "ssd-gds": 100.0}  # % of Tutti's rate up to which the mean TTFT is at most 1 s
AT_LEAST = "published: at least"  # bound on Tutti's rate
