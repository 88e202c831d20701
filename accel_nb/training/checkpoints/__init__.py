"""Checkpoints: what is saved, written whole or not at all, found again, and continued to the bit.

One save, from left to right what goes from every rank to the main process and back::

    every rank                                        main process
    meet (`meeting`)                     -------->    an unfinished folder beside the final one (`place`, `folder`)
    hooks, files of its own (`writing`)               and the files that are alike on all ranks
    names, sizes, checksums              -------->    `manifest`, fsync, rename, `rotation`
    outcome                              <--------
"""
