"""The warm servers of a kernel: processes that have imported what ranks need, and fork them."""
