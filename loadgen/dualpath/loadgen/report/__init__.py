"""Results of experiments: their form, and how they are shown. Nothing here needs a network, and pages neither."""
