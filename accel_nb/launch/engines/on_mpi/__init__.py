"""Of the engine `accel_nb.launch.engines.mpi`: which mpirun is here, the hosts, its command line, its end."""
