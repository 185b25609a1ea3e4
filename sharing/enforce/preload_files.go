package enforce

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/internal/atomicfile"
)

// The layout below the preload directory:
//
//	lib/<hash>.so                      copies of the library
//	ld.so.preload                      what glibc reads
//	lock/                              see lockDir
//	containers/<pod>_<container>/
//	    library                        the version that its spec names
//	    override                       see overrideFile
//	    region/                        the only one that the container writes
const (
	libDir       = "lib"
	libEnd       = ".so"
	containerDir = "containers"
	versionName  = "library"
	overrideName = "override"
	regionName   = "region"
)

// hashLength is how much of the library's SHA-256 names a version.
const hashLength = 16

// maxLibrary bounds what is read into memory; libvgpu.so has about 1 MiB.
const maxLibrary = 64 << 20

func (p *preload) versionFile(version string) string {
	return filepath.Join(p.dir, libDir, version+libEnd)
}

func (p *preload) listFile() string { return filepath.Join(p.dir, "ld.so.preload") }

func (p *preload) lockDir() string { return filepath.Join(p.dir, "lock") }

// fileState reports whether a file was written since.
type fileState struct {
	size int64
	at   time.Time
}

// version is the copy of the library as it is now. A process that has an old
// copy mapped keeps that: writing into a mapped file kills its readers, so no
// copy is ever written again. p.mu is held.
func (p *preload) version() (string, error) {
	path := filepath.Join(p.hostRoot, p.library)
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("library: %w", err)
	}
	state := fileState{info.Size(), info.ModTime()}
	if p.copied != "" && state == p.source {
		if _, err := os.Stat(p.versionFile(p.copied)); err == nil {
			return p.copied, nil
		}
	}
	if info.Size() > maxLibrary {
		return "", fmt.Errorf("library %s: %d bytes are no library", p.library, info.Size())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("library: %w", err)
	}
	sum := sha256.Sum256(content)
	version := hex.EncodeToString(sum[:])[:hashLength]
	// A file under this name has this content, unless a disk failed.
	if err := atomicfile.Write(p.versionFile(version), content, 0o755, atomicfile.Durable); err != nil {
		return "", fmt.Errorf("copy of the library: %w", err)
	}
	if err := atomicfile.Write(p.listFile(), []byte(containerLibrary+"\n"), 0o644, atomicfile.Durable); err != nil {
		return "", fmt.Errorf("list of libraries: %w", err)
	}
	if err := openDir(p.lockDir()); err != nil {
		return "", fmt.Errorf("lock directory: %w", err)
	}
	p.copied, p.source = version, state
	return version, nil
}

// prepareFiles makes a container's files. Its previous run is over when it
// starts, and the old region would still have the processes and limits of that
// run: the library takes the limits of the first process that opens the region.
// The files need no fsync, because a node that loses them starts the container
// again. p.mu is held.
func (p *preload) prepareFiles(l *Limit, version string, env []string) (override, region string, err error) {
	dir := filepath.Join(p.dir, containerDir, l.key())
	override, region = filepath.Join(dir, overrideName), filepath.Join(dir, regionName)
	if err = os.RemoveAll(region); err == nil {
		err = openDir(region)
	}
	if err == nil {
		err = atomicfile.Write(override, []byte(strings.Join(env, "\n")+"\n"), 0o644, atomicfile.Quick)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, versionName), []byte(version), 0o644, atomicfile.Quick)
	}
	if err != nil {
		err = fmt.Errorf("files of container %s: %w", l.Container, err)
	}
	return override, region, err
}

// keep removes the files of containers that are gone, and the copies that no
// container's spec names.
func (p *preload) keep(live func() []Limit) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := make(map[string]bool)
	for _, l := range live() {
		keys[l.key()] = true
	}
	used := map[string]bool{p.copied: true}
	root := filepath.Join(p.dir, containerDir)
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("preload: %w", err)
	}
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if !keys[e.Name()] {
			errs = append(errs, os.RemoveAll(dir))
			continue
		}
		version, err := os.ReadFile(filepath.Join(dir, versionName))
		used[string(version)] = true
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		// A version that could not be read may be any of them.
		return fmt.Errorf("preload: %w", err)
	}
	return p.dropVersions(used)
}

func (p *preload) dropVersions(used map[string]bool) error {
	if p.copied == "" {
		return nil // No container started since this process did: no copy is known to be old.
	}
	entries, err := os.ReadDir(filepath.Join(p.dir, libDir))
	if err != nil {
		return fmt.Errorf("preload: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !used[strings.TrimSuffix(e.Name(), libEnd)] {
			errs = append(errs, os.Remove(filepath.Join(p.dir, libDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// openDir makes a directory that every user may write in: the user of a
// container is not known.
func openDir(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // See below.
		return err
	}
	return os.Chmod(path, 0o777) //nolint:gosec // On purpose, and past the umask.
}
