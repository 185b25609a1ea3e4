/*
 * A stand-in for NVIDIA's management library: the functions that heddle and
 * its libraries call, answered from the file nvml.control beside the library.
 * Every call answers from the file as it is then, so a test changes the driver
 * under a running process; it costs a stat where the real one enters the kernel,
 * and an event wait sleeps in the kernel as the real one does, so that what a
 * daemon costs can be measured beside it. Structures and constants are those of nvml.h, which the
 * build takes from the go-nvml module.
 *
 * What it shares with the real one, since daemons depend on it:
 *  - nvmlInit compares the library's version with the kernel module's and
 *    answers NVML_ERROR_LIB_RM_VERSION_MISMATCH (18) when they differ;
 *  - a session holds /dev/nvidiactl open (here: the file nvidiactl beside the
 *    library), which keeps the driver from being unloaded; each first nvmlInit
 *    of a process appends its PID to that file;
 *  - the library is never unloaded (-z nodelete).
 *
 * Lines of nvml.control, words separated by blanks:
 *   kernel VERSION                     the module that is loaded; none: no driver
 *   gpu N UUID PCI MINOR MIB MIG LINKS STATE STATUS MASK CLIQUE NAME...
 *                                      MIG is -1 (not capable), 0 (off), or 1 and
 *                                      the number of instances; ARG of a failure
 *                                      may be an instance's number
 *   process N PID BYTES                PID 0: memory of no process that the driver lists
 *   errors N LINK REPLAYS RECOVERIES CRC
 *   event N TYPE DATA                  delivered once, in order, to each event set
 *   fail FUNCTION N ARG RETURN         N or ARG -1: any; FUNCTION without "nvml"
 *   slow FUNCTION N MILLISECONDS
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

#ifndef VERSION
#error "VERSION is the driver version of this library"
#endif

#define MAX_GPUS 64
#define LINE 512

struct nvmlDevice_st {
	int index;
	char uuid[96], pci[32], name[96];
	unsigned minor, clique, mask, links;
	unsigned long long mib;
	int mig, state, status;
	int present;
	int instance; /* of a GPU 0, of its MIG devices from 1 */
};

struct nvmlEventSet_st {
	unsigned long long wanted[MAX_GPUS];
	int seen;
	int changes; /* inotify of the directory with the control file */
};

/* Handles stay valid as long as the process, like the real library's. */
static struct nvmlDevice_st devices[MAX_GPUS], instances[MAX_GPUS][7];
static nvmlComputeMode_t modes[MAX_GPUS];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int sessions, control_device = -1;

/* directory has the library's file, which may be replaced later. */
static char directory[PATH_MAX];

static void locate(void) {
	Dl_info info;
	if (!dladdr((void *)locate, &info) || !realpath(info.dli_fname, directory))
		*directory = 0;
	else
		*strrchr(directory, '/') = 0;
}

static const char *beside(const char *name, char *path) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, locate);
	if (!*directory || snprintf(path, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
		return NULL;
	return path;
}

/* control is the file as it is now, NULL without one; version counts its
 * changes. An old text stays, since another thread may read it. */
static FILE *control(unsigned *version) {
	static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
	static char *text;
	static struct stat last;
	static unsigned changes;
	char path[PATH_MAX], *now = NULL;
	struct stat s;
	pthread_mutex_lock(&reading);
	FILE *f = NULL;
	if (beside("nvml.control", path) && !stat(path, &s)) {
		if (text && s.st_ino == last.st_ino && s.st_size == last.st_size &&
		    !memcmp(&s.st_mtim, &last.st_mtim, sizeof s.st_mtim)) {
			now = text;
		} else if ((f = fopen(path, "re")) && !fstat(fileno(f), &s) && (now = malloc(s.st_size + 1))) {
			now[fread(now, 1, s.st_size, f)] = 0;
			text = now, last = s, changes++;
		}
	}
	if (f)
		fclose(f);
	if (version)
		*version = changes;
	pthread_mutex_unlock(&reading);
	return now && *now ? fmemopen(now, strlen(now), "r") : NULL;
}

static int kernel(char *version) {
	char line[LINE];
	int found = 0;
	FILE *f = control(NULL);
	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f))
		found = sscanf(line, "kernel %79s", version) == 1;
	fclose(f);
	return found;
}

/* load reads the GPUs. Other threads read the old values meanwhile, so nothing
 * is written that did not change. */
static void load(void) {
	static struct nvmlDevice_st next[MAX_GPUS];
	static unsigned loaded;
	unsigned version;
	char line[LINE];
	FILE *f = control(&version);
	if (!f)
		return;
	if (version == loaded) {
		fclose(f);
		return;
	}
	loaded = version;
	memcpy(next, devices, sizeof next);
	for (int i = 0; i < MAX_GPUS; i++)
		next[i].present = 0;
	while (fgets(line, sizeof line, f)) {
		struct nvmlDevice_st d = {0};
		if (sscanf(line, "gpu %d %95s %31s %u %llu %d %u %d %d %u %u %95[^\n]", &d.index, d.uuid, d.pci, &d.minor,
			   &d.mib, &d.mig, &d.links, &d.state, &d.status, &d.mask, &d.clique, d.name) != 12)
			continue;
		if (d.index < 0 || d.index >= MAX_GPUS)
			continue;
		d.present = 1;
		next[d.index] = d;
	}
	fclose(f);
	for (int i = 0; i < MAX_GPUS; i++)
		if (memcmp(&devices[i], &next[i], sizeof next[i]))
			devices[i] = next[i];
}

static void sleep_ms(unsigned ms) {
	struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};
	nanosleep(&t, NULL);
}

/* begin is the start of every call: it waits and fails as the control file
 * says, and reads the GPUs. The lock is not held while it waits. */
static nvmlReturn_t begin(const char *function, int gpu, int arg) {
	char line[LINE], name[96];
	int n, a, r, answer = NVML_SUCCESS;
	unsigned ms, wait = 0;
	FILE *f = control(NULL);
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "fail %95s %d %d %d", name, &n, &a, &r) == 4 && !strcmp(name, function + 4) &&
		    (n == -1 || n == gpu) && (a == -1 || a == arg))
			answer = r;
		if (sscanf(line, "slow %95s %d %u", name, &n, &ms) == 3 && !strcmp(name, function + 4) &&
		    (n == -1 || n == gpu))
			wait = ms;
	}
	if (f)
		fclose(f);
	if (wait)
		sleep_ms(wait);
	pthread_mutex_lock(&mu);
	load();
	int open = sessions > 0;
	pthread_mutex_unlock(&mu);
	if (answer == NVML_SUCCESS && !open)
		return NVML_ERROR_UNINITIALIZED;
	return answer;
}

#define BEGIN(gpu, arg)                                                                            \
	do {                                                                                       \
		nvmlReturn_t r_ = begin(__func__, gpu, arg);                                       \
		if (r_ != NVML_SUCCESS)                                                            \
			return r_;                                                                 \
	} while (0)

#define DEVICE(d, arg)                                                                             \
	do {                                                                                       \
		if (!(d).handle)                                                                   \
			return NVML_ERROR_INVALID_ARGUMENT;                                        \
		BEGIN((d).handle->index, arg);                                                     \
		if (!(d).handle->present)                                                          \
			return NVML_ERROR_GPU_IS_LOST;                                             \
	} while (0)

static nvmlReturn_t text(char *to, unsigned length, const char *from) {
	if (strlen(from) + 1 > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, from);
	return NVML_SUCCESS;
}

static nvmlReturn_t start(const char *function) {
	char version[80], path[PATH_MAX];
	nvmlReturn_t r = begin(function, -1, -1);
	if (r != NVML_SUCCESS && r != NVML_ERROR_UNINITIALIZED)
		return r;
	if (!kernel(version))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (strcmp(version, VERSION))
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	pthread_mutex_lock(&mu);
	if (sessions++ == 0 && beside("nvidiactl", path)) {
		control_device = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
		dprintf(control_device, "%d\n", getpid());
	}
	pthread_mutex_unlock(&mu);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return start(__func__); }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return start(__func__); }

nvmlReturn_t nvmlShutdown(void) {
	BEGIN(-1, -1);
	pthread_mutex_lock(&mu);
	if (--sessions == 0 && control_device >= 0) {
		close(control_device);
		control_device = -1;
	}
	pthread_mutex_unlock(&mu);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t r) {
	switch (r) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_IN_USE: return "In use by another client";
	default: return "Unknown Error";
	}
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
	BEGIN(-1, -1);
	return text(version, length, VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
	BEGIN(-1, -1);
	return text(version, length, "12." VERSION);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
	BEGIN(-1, -1);
	*version = 12040;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
	BEGIN(-1, -1);
	*count = 0;
	for (int i = 0; i < MAX_GPUS; i++)
		*count += devices[i].present;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
	BEGIN((int)index, -1);
	if (index >= MAX_GPUS || !devices[index].present)
		return NVML_ERROR_INVALID_ARGUMENT;
	device->handle = &devices[index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
	BEGIN(-1, -1);
	for (int i = 0; i < MAX_GPUS; i++)
		if (devices[i].present && !strcmp(devices[i].uuid, uuid)) {
			device->handle = &devices[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
	BEGIN(-1, -1);
	for (int i = 0; i < MAX_GPUS; i++)
		if (devices[i].present && strcasestr(id, devices[i].pci)) {
			device->handle = &devices[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length) {
	DEVICE(d, d.handle->instance - 1);
	return text(uuid, length, d.handle->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length) {
	DEVICE(d, d.handle->instance - 1);
	return text(name, length, d.handle->name);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned *index) {
	DEVICE(d, -1);
	*index = d.handle->index;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor) {
	DEVICE(d, -1);
	*minor = d.handle->minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci) {
	DEVICE(d, -1);
	unsigned function;
	memset(pci, 0, sizeof *pci);
	sscanf(d.handle->pci, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, function);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.%X", pci->domain & 0xffff, pci->bus & 0xff,
		 pci->device & 0x1f, function & 7);
	pci->pciDeviceId = 0x233010de;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
	DEVICE(d, -1);
	m->total = d.handle->mib << 20;
	m->used = 0;
	m->free = m->total;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
	DEVICE(d, -1);
	*major = 9, *minor = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t d, nvmlDeviceArchitecture_t *a) {
	DEVICE(d, -1);
	*a = NVML_DEVICE_ARCH_HOPPER;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t d, nvmlBrandType_t *b) {
	DEVICE(d, -1);
	*b = NVML_BRAND_NVIDIA;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
	DEVICE(d, -1);
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t d, nvmlGpuVirtualizationMode_t *mode) {
	DEVICE(d, -1);
	*mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
	DEVICE(d, -1);
	if (d.handle->mig < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = d.handle->mig > 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *count) {
	DEVICE(d, -1);
	*count = d.handle->mig < 0 ? 0 : 7;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *mig) {
	DEVICE(d, (int)index);
	if ((int)index >= d.handle->mig - 1 || index >= 7)
		return NVML_ERROR_NOT_FOUND;
	struct nvmlDevice_st next = *d.handle, *instance = &instances[d.handle->index][index];
	next.instance = index + 1;
	snprintf(next.uuid, sizeof next.uuid, "MIG-%d-%u", d.handle->index, index);
	snprintf(next.name, sizeof next.name, "%.80s MIG 1g.10gb", d.handle->name);
	pthread_mutex_lock(&mu);
	if (memcmp(instance, &next, sizeof next))
		*instance = next;
	pthread_mutex_unlock(&mu);
	mig->handle = instance;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *a) {
	DEVICE(d, d.handle->instance - 1);
	if (!d.handle->instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	*a = (nvmlDeviceAttributes_t){.multiprocessorCount = 16, .sharedCopyEngineCount = 1, .sharedDecoderCount = 1,
				      .sharedJpegCount = 1, .gpuInstanceSliceCount = 1, .computeInstanceSliceCount = 1,
				      .memorySizeMB = d.handle->mib / 8};
	return NVML_SUCCESS;
}

/* An instance and what computes in it are one here, of the profile with one slice: NVIDIA's
 * library finds "1g.10gb" by these. */
#define PROFILE 19 /* of one slice, as on an H100 */

static struct nvmlDevice_st *instance(void *handle) { return handle; }

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
	DEVICE(mig, mig.handle->instance - 1);
	if (!mig.handle->instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	device->handle = &devices[mig.handle->index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id) {
	DEVICE(d, d.handle->instance - 1);
	*id = d.handle->instance;
	return d.handle->instance ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id) {
	DEVICE(d, d.handle->instance - 1);
	*id = 0;
	return d.handle->instance ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t d, unsigned id, nvmlGpuInstance_t *gi) {
	DEVICE(d, (int)id - 1);
	if (id < 1 || id > 7)
		return NVML_ERROR_NOT_FOUND;
	gi->handle = (void *)&instances[d.handle->index][id - 1];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned id, nvmlComputeInstance_t *ci) {
	BEGIN(instance(gi.handle)->index, -1);
	ci->handle = (void *)gi.handle;
	return id ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info) {
	BEGIN(instance(gi.handle)->index, -1);
	*info = (nvmlGpuInstanceInfo_t){.id = instance(gi.handle)->instance, .profileId = PROFILE};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info) {
	BEGIN(instance(ci.handle)->index, -1);
	*info = (nvmlComputeInstanceInfo_t){.id = 0, .profileId = 0};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t d, unsigned profile, nvmlGpuInstanceProfileInfo_t *info) {
	DEVICE(d, (int)profile);
	if (d.handle->mig < 0 || profile != NVML_GPU_INSTANCE_PROFILE_1_SLICE)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuInstanceProfileInfo_t){.id = PROFILE, .sliceCount = 1, .instanceCount = 7};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, unsigned profile, unsigned engines,
							  nvmlComputeInstanceProfileInfo_t *info) {
	BEGIN(instance(gi.handle)->index, (int)profile);
	if (profile != NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE || engines != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlComputeInstanceProfileInfo_t){.id = 0, .sliceCount = 1, .instanceCount = 1};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t d, unsigned *is) {
	DEVICE(d, -1);
	*is = d.handle->instance > 0;
	return NVML_SUCCESS;
}

#ifndef NO_FABRIC
static void fabric(nvmlDevice_t d, unsigned char *cluster, nvmlReturn_t *status, unsigned *clique,
		   nvmlGpuFabricState_t *state) {
	memset(cluster, 0, NVML_GPU_FABRIC_UUID_LEN);
	cluster[NVML_GPU_FABRIC_UUID_LEN - 1] = d.handle->state == NVML_GPU_FABRIC_STATE_COMPLETED && d.handle->clique;
	*status = d.handle->status;
	*clique = d.handle->clique;
	*state = d.handle->state;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, nvmlGpuFabricInfo_t *info) {
	DEVICE(d, -1);
	fabric(d, info->clusterUuid, &info->status, &info->cliqueId, &info->state);
	return NVML_SUCCESS;
}

/* ARG of a failure is the version of the structure: old drivers reject new ones. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfoV_t *info) {
	DEVICE(d, (int)(info->version >> 24));
	if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	fabric(d, info->clusterUuid, &info->status, &info->cliqueId, &info->state);
	info->healthMask = d.handle->mask;
	if (info->version == nvmlGpuFabricInfo_v3)
		info->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED;
	return NVML_SUCCESS;
}
#endif

/* heddle reads the PCI tree instead; NVIDIA's plugin, for the benchmarks, asks for every pair. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t d, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level) {
	DEVICE(d, -1);
	*level = d.handle == other.handle ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, nvmlEnableState_t *active) {
	DEVICE(d, (int)link);
	if (link >= d.handle->links)
		return NVML_ERROR_INVALID_ARGUMENT;
	*active = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned link, nvmlIntNvLinkDeviceType_t *type) {
	DEVICE(d, (int)link);
	*type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned link, nvmlPciInfo_t *pci) {
	DEVICE(d, (int)link);
	memset(pci, 0, sizeof *pci);
	return NVML_ERROR_NOT_SUPPORTED;
}

/* link_errors answers for one counter of a link, as drivers before Blackwell's GPUs do. */
static void link_errors(nvmlDevice_t d, nvmlFieldValue_t *value) {
	char line[LINE];
	int n;
	unsigned link;
	unsigned long long replays, recoveries, crc;
	if (value->scopeId >= (unsigned)d.handle->links) {
		value->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
		return;
	}
	value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	FILE *f = control(NULL);
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "errors %d %u %llu %llu %llu", &n, &link, &replays, &recoveries, &crc) == 5 &&
		    n == d.handle->index && link == value->scopeId)
			value->value.ullVal = value->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY ? replays
			                    : value->fieldId == NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY ? recoveries : crc;
	if (f)
		fclose(f);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values) {
	DEVICE(d, -1);
	for (int i = 0; i < count; i++) {
		values[i].nvmlReturn = NVML_SUCCESS;
		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		memset(&values[i].value, 0, sizeof values[i].value);
		switch (values[i].fieldId) {
		case NVML_FI_DEV_NVLINK_GET_SPEED: values[i].value.uiVal = 26562; break;
		case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: break;
		case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY:
		case NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY:
		case NVML_FI_DEV_NVLINK_ERROR_DL_CRC: link_errors(d, &values[i]); break;
		default: values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned *t) {
	DEVICE(d, -1);
	(void)sensor;
	*t = 41;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m) {
	DEVICE(d, -1);
	char line[LINE];
	int n;
	unsigned pid;
	unsigned long long bytes;
	m->total = d.handle->mib << 20;
	m->reserved = 512ULL << 20;
	m->used = 4ULL << 20;
	FILE *f = control(NULL);
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "process %d %u %llu", &n, &pid, &bytes) == 3 && n == d.handle->index)
			m->used += bytes;
	if (f)
		fclose(f);
	m->free = m->total - m->reserved - m->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t d, nvmlEnableState_t *active) {
	DEVICE(d, -1);
	*active = NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
	DEVICE(d, -1);
	(void)infos;
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
	DEVICE(d, -1);
	char line[LINE];
	int n;
	unsigned pid, found = 0, room = *count;
	unsigned long long bytes;
	FILE *f = control(NULL);
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "process %d %u %llu", &n, &pid, &bytes) == 3 && n == d.handle->index && pid) {
			if (found < room)
				infos[found] = (nvmlProcessInfo_t){pid, bytes, 0xffffffff, 0xffffffff};
			found++;
		}
	if (f)
		fclose(f);
	*count = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *samples, unsigned *count,
					     unsigned long long after) {
	DEVICE(d, -1);
	(void)samples, (void)after;
	*count = 0;
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, nvmlComputeMode_t *mode) {
	DEVICE(d, -1);
	*mode = modes[d.handle->index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t d, nvmlComputeMode_t mode) {
	DEVICE(d, -1);
	modes[d.handle->index] = mode;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
	DEVICE(d, -1);
	*types = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
	BEGIN(-1, -1);
	char path[PATH_MAX];
	set->handle = calloc(1, sizeof *set->handle);
	if (!set->handle || !beside("", path))
		return NVML_ERROR_MEMORY;
	set->handle->changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	inotify_add_watch(set->handle->changes, path, IN_MOVED_TO | IN_CLOSE_WRITE);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
	close(set.handle->changes);
	free(set.handle);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set) {
	DEVICE(d, -1);
	set.handle->wanted[d.handle->index] |= types;
	return NVML_SUCCESS;
}

static long long milliseconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout) {
	for (long long left, end = milliseconds() + timeout;;) {
		char line[LINE], changes[4096];
		int n, number = 0;
		unsigned long long type, value;
		BEGIN(-1, -1);
		FILE *f = control(NULL);
		while (f && fgets(line, sizeof line, f)) {
			if (sscanf(line, "event %d %llu %llu", &n, &type, &value) != 3 || number++ < set.handle->seen)
				continue;
			set.handle->seen = number;
			if (n < 0 || n >= MAX_GPUS || !(set.handle->wanted[n] & type))
				continue;
			fclose(f);
			memset(data, 0xff, sizeof *data);
			data->device.handle = &devices[n];
			data->eventType = type;
			data->eventData = value;
			return NVML_SUCCESS;
		}
		if (f)
			fclose(f);
		if ((left = end - milliseconds()) <= 0)
			return NVML_ERROR_TIMEOUT;
		struct pollfd changed = {.fd = set.handle->changes, .events = POLLIN};
		poll(&changed, 1, left);
		while (read(set.handle->changes, changes, sizeof changes) > 0)
			;
	}
}
