/*
 * All-reduces of 4-byte floats over the ranks of MPI, with the output of nccl-tests' all_reduce_perf, except that
 * bandwidths have four decimals: emulated links are slow.
 * Options as there: -b and -e are the smallest and the largest size in bytes, -f their factor, -n and -w the
 * iterations and those before them.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks;

/* run returns the mean time of one all-reduce in microseconds. */
static double run(const float *in, float *out, int count, int iterations)
{
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (int i = 0; i < iterations; i++)
		MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	double us = (MPI_Wtime() - start) / iterations * 1e6;
	MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return us / ranks;
}

/* wrong counts the elements of a sum that are not the sum of 1 to ranks. */
static long wrong(const float *sum, int count)
{
	long n = 0;
	for (int i = 0; i < count; i++)
		n += sum[i] != ranks * (ranks + 1) / 2;
	MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	return n;
}

/* report prints the columns of one run and returns its bus bandwidth, which each rank's port has in a ring. */
static double report(double us, long size, long errors)
{
	double algorithm = size / us / 1e3, bus = algorithm * 2 * (ranks - 1) / ranks;
	if (rank == 0)
		printf("  %7.*f  %6.4f  %6.4f  %5ld", us >= 1e4 ? 0 : us >= 100 ? 1 : 2, us, algorithm, bus, errors);
	return bus;
}

static void devices(void)
{
	char host[64], line[128], *lines = calloc(ranks, sizeof line);
	gethostname(host, sizeof host);
	snprintf(line, sizeof line, "#  Rank %2d Group  0 Pid %6d on %10s device  0 [0x00] CPU\n", rank, getpid(), host);
	MPI_Gather(line, sizeof line, MPI_CHAR, lines, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
	for (int i = 0; rank == 0 && i < ranks; i++)
		printf("%s", lines + i * sizeof line);
	free(lines);
}

int main(int argc, char **argv)
{
	long smallest = 1024, largest = 1024, factor = 2;
	int iterations = 20, before = 5, steps = 0;
	for (int option; (option = getopt(argc, argv, "b:e:f:n:w:")) != -1;)
		switch (option) {
		case 'b': smallest = atol(optarg); break;
		case 'e': largest = atol(optarg); break;
		case 'f': factor = atol(optarg); break;
		case 'n': iterations = atoi(optarg); break;
		case 'w': before = atoi(optarg); break;
		default: return 2;
		}
	setlinebuf(stdout);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (rank == 0)
		printf("# nThread 1 nGpus 1 minBytes %ld maxBytes %ld step: %ld(factor) warmup iters: %d iters: %d "
		       "agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n", smallest, largest, factor, before, iterations);
	devices();
	if (rank == 0)
		printf("#\n"
		       "#                                                              out-of-place                       in-place          \n"
		       "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
		       "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n");
	float *in = malloc(largest), *out = malloc(largest);
	double sum = 0;
	long errors = 0;
	for (long size = smallest; size <= largest; size *= factor, steps++) {
		int count = size / sizeof *in;
		for (int i = 0; i < count; i++)
			in[i] = rank + 1;
		if (before > 0)
			run(in, out, count, before);
		double us = run(in, out, count, iterations);
		long outOfPlace = wrong(out, count);
		if (rank == 0)
			printf("%12ld  %12d  %8s  %6s  %6d", size, count, "float", "sum", -1);
		sum += report(us, size, outOfPlace);
		us = run(MPI_IN_PLACE, out, count, iterations); /* Of any values: only the time counts. */
		memcpy(out, in, size);
		run(MPI_IN_PLACE, out, count, 1);
		long inPlace = wrong(out, count);
		sum += report(us, size, inPlace);
		errors += outOfPlace + inPlace;
		if (rank == 0)
			printf("\n");
	}
	if (rank == 0)
		printf("# Out of bounds values : %ld %s\n# Avg bus bandwidth    : %g \n#\n\n",
		       errors, errors ? "FAILED" : "OK", sum / (2 * steps));
	MPI_Finalize();
	return errors != 0;
}
