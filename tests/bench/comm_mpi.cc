// The peer of comm_bench: MPI_Allreduce, in place, of buffers that are written anew before each
// round. Prints "BYTES SECONDS" for each size: the median of the rounds, each as long as the
// slowest rank took. Built by comm_bench where there is an mpicxx.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  for (int i = 2; i < argc; ++i) {
    const long n = std::atol(argv[i]) / 4;
    std::vector<float> x(static_cast<size_t>(n));
    std::vector<double> times;
    for (int r = 0; r <= rounds; ++r) {
      std::fill(x.begin(), x.end(), static_cast<float>(rank + r));
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
      double mine = MPI_Wtime() - start, slowest = 0;
      MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (r > 0) times.push_back(slowest);
    }
    std::sort(times.begin(), times.end());
    if (rank == 0) std::printf("%ld %.9f\n", n * 4, times[times.size() / 2]);
  }
  MPI_Finalize();
  return 0;
}
