// A CUDA program without CUDA's headers: it does what its arguments say, one after
// another, and prints one line for each. The driver's library is loaded by its SONAME, as
// CUDA's runtime does. Results are numbers of enum cudaError_enum (cuda.h).
//
//   fork        two processes do the rest, before CUDA starts
//   unset NAME  drop an environment variable, before CUDA starts
//   info        GPUs as JSON: UUID, MiB, multiprocessors
//   alloc MIB   allocate and write device memory, and keep it
//   fill        allocate until that fails: MiB, and the result
//   spin S      keep all multiprocessors busy for S seconds: rounds a second
//   fault       write to an address that is not mapped
//   wait        until SIGTERM
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fault() {\n"
    "  .reg .u64 %a; .reg .u32 %v;\n"
    "  mov.u64 %a, 16; mov.u32 %v, 1; st.global.u32 [%a], %v; ret;\n"
    "}\n"
    ".visible .entry spin(.param .u32 n) {\n"
    "  .reg .u32 %r; .reg .f32 %f; .reg .pred %p;\n"
    "  ld.param.u32 %r, [n]; mov.f32 %f, 0f3F800000;\n"
    "again:\n"
    "  fma.rn.f32 %f, %f, %f, %f; sub.u32 %r, %r, 1;\n"
    "  setp.ne.u32 %p, %r, 0; @%p bra again;\n"
    "  setp.eq.f32 %p, %f, 0f00000000; @%p trap; ret;\n"
    "}\n";

enum { MULTIPROCESSORS = 16 };  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

typedef unsigned long long ptr;

static int (*cuInit)(unsigned), (*cuDeviceGetCount)(int *), (*cuDeviceGet)(int *, int),
    (*cuDeviceGetUuid)(unsigned char *, int), (*cuDeviceTotalMem)(size_t *, int), (*cuDeviceGetAttribute)(int *, int, int),
    (*cuCtxCreate)(void **, unsigned, int), (*cuMemAlloc)(ptr *, size_t), (*cuMemsetD8)(ptr, unsigned char, size_t),
    (*cuModuleLoadData)(void **, const void *), (*cuModuleGetFunction)(void **, void *, const char *),
    (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
    (*cuCtxSynchronize)(void);

static void *driver;

static void load(void *function, const char *name) {
  void *address = dlsym(driver, name);
  if (!address) {
    printf("%s\n", dlerror());
    exit(1);
  }
  memcpy(function, &address, sizeof address);
}

static void check(const char *what, int result) {
  if (result) {
    printf("%s %d\n", what, result);
    exit(1);
  }
}

static void init(void) {
  static int done;
  if (!done++) check("cuInit", cuInit(0));
}

static void *context(void) {
  static void *c;
  int device;
  if (!c) {
    init();
    check("cuDeviceGet", cuDeviceGet(&device, 0));
    check("cuCtxCreate", cuCtxCreate(&c, 0, device));
  }
  return c;
}

static void *kernel(const char *name) {
  void *module, *function;
  context();
  check("cuModuleLoadData", cuModuleLoadData(&module, ptx));
  check(name, cuModuleGetFunction(&function, module, name));
  return function;
}

static void info(void) {
  int count;
  init();
  check("cuDeviceGetCount", cuDeviceGetCount(&count));
  printf("[");
  for (int i = 0; i < count; i++) {
    int device, sms;
    size_t bytes;
    unsigned char u[16];
    check("cuDeviceGet", cuDeviceGet(&device, i));
    check("cuDeviceGetUuid", cuDeviceGetUuid(u, device));
    check("cuDeviceTotalMem", cuDeviceTotalMem(&bytes, device));
    check("cuDeviceGetAttribute", cuDeviceGetAttribute(&sms, MULTIPROCESSORS, device));
    printf("%s{\"uuid\":\"GPU-", i ? "," : "");
    for (int b = 0; b < 16; b++) printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", u[b]);
    printf("\",\"memoryMiB\":%zu,\"multiprocessors\":%d}", bytes >> 20, sms);
  }
  printf("]\n");
}

static void alloc(size_t mib) {
  ptr memory;
  context();
  int result = cuMemAlloc(&memory, mib << 20);
  if (!result) result = cuMemsetD8(memory, 1, mib << 20);
  if (!result) result = cuCtxSynchronize();
  printf("alloc %zu: %d\n", mib, result);
}

static void fill(void) {
  const size_t step = 64;
  size_t sum = 0;
  ptr memory;
  int result;
  context();
  while (!(result = cuMemAlloc(&memory, step << 20))) sum += step;
  printf("fill %zu: %d\n", sum, result);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void spin(double seconds) {
  void *function = kernel("spin");
  unsigned rounds = 1 << 20, n = 0;
  void *arguments[] = {&rounds};
  double start = now(), took;
  do {
    // Some waves of blocks on any GPU.
    check("cuLaunchKernel", cuLaunchKernel(function, 2048, 1, 1, 512, 1, 1, 0, NULL, arguments, NULL));
    check("cuCtxSynchronize", cuCtxSynchronize());
    n++;
  } while ((took = now() - start) < seconds);
  printf("spin %.3f\n", n / took);
}

static void fault(void) {
  int result = cuLaunchKernel(kernel("fault"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  if (!result) result = cuCtxSynchronize();
  printf("fault: %d\n", result);
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) {
    printf("%s\n", dlerror());
    return 1;
  }
  load(&cuInit, "cuInit");
  load(&cuDeviceGetCount, "cuDeviceGetCount");
  load(&cuDeviceGet, "cuDeviceGet");
  load(&cuDeviceGetUuid, "cuDeviceGetUuid_v2");
  load(&cuDeviceTotalMem, "cuDeviceTotalMem_v2");
  load(&cuDeviceGetAttribute, "cuDeviceGetAttribute");
  load(&cuCtxCreate, "cuCtxCreate_v2");
  load(&cuMemAlloc, "cuMemAlloc_v2");
  load(&cuMemsetD8, "cuMemsetD8_v2");
  load(&cuModuleLoadData, "cuModuleLoadData");
  load(&cuModuleGetFunction, "cuModuleGetFunction");
  load(&cuLaunchKernel, "cuLaunchKernel");
  load(&cuCtxSynchronize, "cuCtxSynchronize");
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, NULL);
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "fork")) {
      if (fork() < 0) return 3;
    } else if (!strcmp(argv[i], "unset") && i + 1 < argc) unsetenv(argv[++i]);
    else if (!strcmp(argv[i], "info")) info();
    else if (!strcmp(argv[i], "fill")) fill();
    else if (!strcmp(argv[i], "alloc") && i + 1 < argc) alloc(strtoul(argv[++i], NULL, 10));
    else if (!strcmp(argv[i], "spin") && i + 1 < argc) spin(strtod(argv[++i], NULL));
    else if (!strcmp(argv[i], "fault")) fault();
    else if (!strcmp(argv[i], "wait")) sigwait(&end, &(int){0});
    else return 2;
  }
  return 0;
}
