package enforce

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// HAMi-core's contract, which other libraries of the kind follow. docs/concepts/enforcers.md
// has where it reads each.
const (
	// envDeviceMemory_<i> is "4096m" for the container's i-th GPU, without an index
	// it is the default of the others. 0, or an invalid value, means no limit.
	envDeviceMemory = "CUDA_DEVICE_MEMORY_LIMIT"
	// envDeviceSM_<i> is percent, with the same default. 100 and 0 mean no limit.
	envDeviceSM = "CUDA_DEVICE_SM_LIMIT"
	// envRegion is the file that the container's processes share.
	envRegion = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	// envPolicy selects when the compute limit holds: force always, default as the
	// library sees fit, disable never.
	envPolicy = "GPU_CORE_UTILIZATION_POLICY"
)

// ownedEnv returns the other variables that the library reads, with the values that it
// takes without them: what a pod sets would switch it off, lend it host memory or
// load another library. An empty CUDA_REDIRECT has no effect.
func ownedEnv() []string {
	return []string{
		"CUDA_DISABLE_CONTROL=false", "CUDA_OVERSUBSCRIBE=false", "CUDA_REDIRECT=", "CUDA_TASK_PRIORITY=1",
		"ACTIVE_OOM_KILLER=true", "LIBVGPU_HOSTPID_BROKER=0", "LIBCUDA_LOG_LEVEL=2",
		envRegion + "=" + filepath.Join(containerRegion, regionFile),
	}
}

// Where a container has the parts.
const (
	containerLibrary = "/usr/local/vgpu/libvgpu.so"
	containerRegion  = "/usr/local/vgpu/region"
	regionFile       = "region.cache"
	// preloadList is read by glibc's dynamic loader, for every program.
	preloadList = "/etc/ld.so.preload"
	// overrideFile is a list of environment variables that HAMi-core has a
	// reader for (ENV_OVERRIDE_FILE), against shells that drop them.
	overrideFile = "/overrideEnv"
	// lockDir serializes processes with libraries before August 2026 while they start.
	// Without it each start waits for seconds.
	lockDir = "/tmp/vgpulock"
)

// maxFiles bounds what a container can write there, in its own memory: the region of
// HAMi-core has about 2 MiB.
const maxFiles = "16m"

// preload puts the administrator's library before the driver's.
type preload struct {
	// hostRoot is where the process sees the node's files, dir the state directory, with the same
	// path on the node.
	hostRoot, dir string

	mu sync.Mutex // guards the files and what follows
	// copied is the version that was made last.
	copied string
}

func (p *preload) edits(_ context.Context, l *Limit, s *settings) (*cdi.ContainerEdits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	version, err := p.version(s.library)
	if err != nil {
		return nil, fmt.Errorf("preload: %w", err)
	}
	env := preloadEnv(l)
	// It needs no fsync: a node that loses it starts the container again.
	override := filepath.Join(p.dir, containerDir, l.key())
	if err := hostfile.Write(override, []byte(strings.Join(env, "\n")+"\n"), 0o644, hostfile.Quick); err != nil {
		return nil, fmt.Errorf("preload: variables of container %s: %w", l.Container, err)
	}
	return &cdi.ContainerEdits{
		Env: env,
		Mounts: []*cdi.Mount{
			mount(p.versionFile(version), containerLibrary, "ro", "nosuid", "nodev"),
			mount(p.listFile(), preloadList, "ro", "nosuid", "nodev", "noexec"),
			mount(override, overrideFile, "ro", "nosuid", "nodev", "noexec"),
			memory(containerRegion),
			memory(lockDir),
		},
	}, nil
}

// memory returns a mount of a private directory that every user may write in, empty at each start:
// a region of an earlier run would still have that run's processes and limits, since the library
// takes the limits of the first process that opens it.
func memory(container string) *cdi.Mount {
	return &cdi.Mount{
		HostPath: "tmpfs", ContainerPath: container, Type: "tmpfs",
		Options: []string{"rw", "nosuid", "nodev", "noexec", "mode=0777", "size=" + maxFiles},
	}
}

func mount(host, container string, options ...string) *cdi.Mount {
	return &cdi.Mount{HostPath: host, ContainerPath: container, Options: append([]string{"bind"}, options...)}
}

// preloadEnv sets every variable that the library reads, for every GPU and as the
// default, also to what it would be without: CDI's environment replaces the pod's,
// and the library prefers a GPU's own variable to the default.
func preloadEnv(l *Limit) []string {
	memory := l.By.Memory == config.EnforcePreload
	env := ownedEnv()
	leastMiB, least := int64(math.MaxInt64), quota.Whole
	for i := range l.GPUs {
		c := &l.GPUs[i]
		percent := l.smPercent(c)
		leastMiB, least = min(leastMiB, c.Share.MemoryMiB), min(least, percent)
		env = append(env, fmt.Sprintf("%s_%d=%s", envDeviceMemory, i, memoryText(memory, c.Share.MemoryMiB)),
			fmt.Sprintf("%s_%d=%d", envDeviceSM, i, percent))
	}
	return append(env, envDeviceMemory+"="+memoryText(memory, leastMiB), envDeviceSM+"="+strconv.Itoa(least),
		envPolicy+"="+l.policyWord())
}

// memoryText returns a limit of memory as the library reads it; empty means no limit.
func memoryText(limited bool, mib int64) string {
	if !limited {
		return ""
	}
	return strconv.FormatInt(mib, 10) + "m"
}

// smPercent returns the library's compute limit of a GPU. It is the vcore also where
// the policy lets a container exceed it, since the library decides that.
func (l *Limit) smPercent(c *GPU) int {
	if l.By.Compute != config.EnforcePreload {
		return quota.Whole
	}
	return min(cmp.Or(max(c.Share.VCore, 0), quota.Whole), quota.Whole)
}

// policyWord is HAMi-core's name of the policy.
func (l *Limit) policyWord() string {
	switch {
	case l.By.Compute != config.EnforcePreload || l.Policy == quota.BestEffort:
		return "disable"
	case l.Policy == quota.BurstShare:
		return "default"
	}
	return "force"
}

// The layout below the preload directory:
//
//	lib/<hash>.so                      copies of the library
//	ld.so.preload                      what glibc reads
//	containers/<pod>_<container>       see overrideFile
const (
	libDir       = "lib"
	libEnd       = ".so"
	containerDir = "containers"
)

// hashLength is the length of the prefix of the library's SHA-256 that names a version.
const hashLength = 16

// maxLibrary bounds the library's size in memory; libvgpu.so has about 1 MiB.
const maxLibrary = 64 << 20

func (p *preload) versionFile(version string) string {
	return filepath.Join(p.dir, libDir, version+libEnd)
}

func (p *preload) listFile() string { return filepath.Join(p.dir, "ld.so.preload") }

// version returns the copy of the library as it is now. A process that has an old
// copy mapped keeps that: writing into a mapped file kills its readers, so no
// copy is ever written again. p.mu is held.
func (p *preload) version(library string) (string, error) {
	path, err := hostfile.Path(p.hostRoot, library)
	if err != nil {
		return "", fmt.Errorf("library: %w", err)
	}
	content, err := hostfile.ReadAtMost(path, maxLibrary)
	if err != nil {
		return "", fmt.Errorf("library: %w", err)
	}
	sum := sha256.Sum256(content)
	version := hex.EncodeToString(sum[:])[:hashLength]
	// A file under this name has this content, unless a disk failed.
	if _, err := os.Stat(p.versionFile(version)); err == nil && p.copied == version {
		return version, nil
	}
	if err := hostfile.Write(p.versionFile(version), content, 0o755, hostfile.Durable); err != nil {
		return "", fmt.Errorf("copy of the library: %w", err)
	}
	if err := hostfile.Write(p.listFile(), []byte(containerLibrary+"\n"), 0o644, hostfile.Durable); err != nil {
		return "", fmt.Errorf("list of libraries: %w", err)
	}
	p.copied = version
	return version, nil
}

// keep removes the files of containers that are gone, and without containers all copies of the
// library but the last.
func (p *preload) keep(live func() []Limit) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := make(map[string]bool)
	for _, l := range live() {
		if l.By == (Enforced{}) || l.By.Uses(config.EnforcePreload) {
			keep[l.key()] = true
		}
	}
	err := removeOthers(filepath.Join(p.dir, containerDir), keep)
	if len(keep) == 0 && p.copied != "" {
		err = errors.Join(err, removeOthers(filepath.Join(p.dir, libDir), map[string]bool{p.copied + libEnd: true}))
	}
	if err != nil {
		return fmt.Errorf("preload: %w", err)
	}
	return nil
}

// removeOthers removes the files of a directory that are not in keep.
func removeOthers(dir string, keep map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if !keep[e.Name()] {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
