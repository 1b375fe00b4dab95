"""`rackcast calibrate`: real kernels and collectives timed on the GPUs at hand, and curves fitted to them.

`plan` says what is measured; the module of each table measures it, in processes of their own that need torch;
`session` runs them and keeps finished tables (`store`); `refit`, `collective_timings` and `profile` make the files that
forecasts read. Forecasts import nothing of this package: they read its files.
"""
