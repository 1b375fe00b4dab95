"""What each kernel must compute, in a few lines of PyTorch and in the precision of the inputs they are given."""
